"""A small captioner in plain torch: images in, words out.

A convolutional encoder turns an image into a grid of cells, a transformer decoder looks at the cells and says one word
after the other. It is made to learn something within minutes on two cores, not to be good.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import torch
from torch import Tensor, nn

from shards.dataset import DatasetReader

PAD, START, END, UNKNOWN = range(4)
SPECIALS = ("<pad>", "<start>", "<end>", "<unknown>")
"""No word of a caption can be one of these: `split` takes the brackets apart."""
MAX_WORDS = 40
"""Words of a caption that are learned or generated at most; longer captions are cut. COCO's mean is 10."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SAMPLES_AT_ONCE = 256


class _Captions(msgspec.Struct):
    """The one field of a sample's `.json` that is read."""

    captions: list[str]


def read_captions(reader: DatasetReader) -> Iterator[str]:
    """Yield all captions of a packed dataset in storage order: of `.json`, or of `.txt` where there is no `.json`.

    Raises:
        ShardsError, FileNotFoundError: the dataset cannot be read.
    """
    decoder = msgspec.json.Decoder(_Captions)
    for start in range(0, len(reader), _SAMPLES_AT_ONCE):
        rows = range(start, min(start + _SAMPLES_AT_ONCE, len(reader)))
        for sample in reader.read(rows, suffixes=("json", "txt")):
            if "json" in sample.parts:
                yield from decoder.decode(sample.parts["json"]).captions
            elif "txt" in sample.parts:
                yield str(sample.parts["txt"], "utf-8")


def split(caption: str) -> list[str]:
    """Cut a caption into lower-case words and punctuation marks, in Unicode's composed form (NFC)."""
    return _TOKEN.findall(unicodedata.normalize("NFC", caption).lower())


def frequent_words(captions: Iterable[str], *, min_count: int = 2) -> list[str]:
    """Return the words that occur `min_count` times or more, the most frequent first, equals by alphabet."""
    counts = Counter(word for caption in captions for word in split(caption))
    frequent = [word for word, count in counts.items() if count >= min_count]
    return sorted(frequent, key=lambda word: (-counts[word], word))


class Vocabulary:
    """Words and their numbers; the specials come first.

    Attributes:
        words: The word of each number.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = [*SPECIALS, *words]
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, captions: Sequence[str]) -> Tensor:
        """Return int64 [B, T]: START, the words, END, then PAD; T is what the longest caption needs."""
        rows = [[self._numbers.get(word, UNKNOWN) for word in split(caption)[:MAX_WORDS]] for caption in captions]
        tensors = [torch.tensor([START, *row, END]) for row in rows]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PAD)

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the words up to END as a line; marks stand at the word before them."""
        words: list[str] = []
        for number in numbers:
            if number == END:
                break
            if number not in {PAD, START}:
                words.append(self.words[number])
        return re.sub(r" ([.,;:!?])", r"\1", " ".join(words))


class Captioner(nn.Module):
    """The model. Images are float [B, 3, H, W], normalized, of any size from 8 pixels up.

    Attributes:
        vocabulary: What it can say.
    """

    def __init__(self, vocabulary: Vocabulary, *, width: int = 128) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.see = nn.Sequential(
            *_convolve(3, width // 4, stride=2),
            *_convolve(width // 4, width // 2, stride=2),
            *_convolve(width // 2, width, stride=2),
            *_convolve(width, width, stride=1),
        )
        self.place = nn.Linear(2, width)
        self.word = nn.Embedding(len(vocabulary), width)
        self.turn = nn.Embedding(MAX_WORDS + 1, width)
        layer = nn.TransformerDecoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.tell = nn.TransformerDecoder(layer, num_layers=2)
        self.choose = nn.Linear(width, len(vocabulary))

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of each caption: float [B], mean cross entropy of its words in nats, padding left out.

        `tokens` are int64 [B, T] of `Vocabulary.encode`, on the images' device.
        """
        scores = self.scores(self.cells(images), tokens[:, :-1])
        targets = tokens[:, 1:]
        losses = nn.functional.cross_entropy(scores.transpose(1, 2), targets, ignore_index=PAD, reduction="none")
        return losses.sum(dim=1) / (targets != PAD).sum(dim=1)

    def cells(self, images: Tensor) -> Tensor:
        """Return what is seen where: float [B, cells, width]."""
        seen = self.see(images)
        axes = [torch.linspace(-1, 1, length, device=seen.device, dtype=seen.dtype) for length in seen.shape[-2:]]
        places = torch.stack(torch.meshgrid(axes, indexing="ij"), dim=-1)
        cells: Tensor = seen.flatten(2).transpose(1, 2) + self.place(places.flatten(0, 1))
        return cells

    def scores(self, cells: Tensor, tokens: Tensor) -> Tensor:
        """Return the scores of the word after each of `tokens`, int64 [B, T]: float [B, T, words]."""
        length = tokens.shape[1]
        said = self.word(tokens) + self.turn.weight[:length]
        unheard = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        scores: Tensor = self.choose(self.tell(said, cells, tgt_mask=unheard, tgt_is_causal=True))
        return scores

    @torch.no_grad()
    def caption(self, images: Tensor) -> list[str]:
        """Return a caption of each image, word by word the likeliest. The model should be in eval mode."""
        cells = self.cells(images)
        tokens = torch.full((len(images), 1), START, device=images.device)
        for _ in range(MAX_WORDS):
            scores = self.scores(cells, tokens)[:, -1]
            scores[:, [PAD, START, UNKNOWN]] = -torch.inf
            tokens = torch.cat([tokens, scores.argmax(dim=-1, keepdim=True)], dim=1)
            if bool((tokens == END).any(dim=1).all()):
                break
        return [self.vocabulary.decode(row) for row in tokens.tolist()]


def _convolve(inputs: int, outputs: int, *, stride: int) -> tuple[nn.Module, ...]:
    """One step of seeing. BatchNorm: the demo's two epochs end at a loss of 0.33 with it, at 0.39 with GroupNorm."""
    size = 5 if inputs == 3 else 3  # noqa: PLR2004 - red, green and blue
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()
