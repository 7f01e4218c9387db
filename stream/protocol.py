"""What reader and ranks say to each other over a link: small msgpack messages, a portion's bytes beside them.

A rank says Begin, then for each portion Ready (which gives its span back, unless it was lent) or Failed, and Leave when
its iteration ends.
The reader says Portion, and when every rank has answered Commit, or else one Fault. All carry the number of the
iteration, so what is left of an earlier one is told apart and dropped.
"""

from typing import Literal, TypeAlias

import msgspec

from stream.carry import Carried
from stream.point import Bookmark

Kind: TypeAlias = Literal["batch", "rows", "thing"]
"""What a portion is: a packed batch, encoded rows to be decoded, or (rank 0's own) the batch itself."""


BESIDE, LENT = -1, -2


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A rank begins an iteration. `facts` must be equal on all ranks: names of options to their values, in words.

    `borrows`: batches may be laid over spans that are lent. `kept` are spans that were lent before and are still in
    use, `worn` as in `Ready`; it uses no other span any more.
    """

    iteration: int
    facts: dict[str, str]
    borrows: bool = False
    kept: list[int] = []
    worn: list[int] = []


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A rank has its batch of a step, and needs span `number` no longer.

    A `number` below 0: it was lent, and lies under the batch. Of those that were lent before, `back` are in use no
    longer; neither are `worn`, but a process that was forked meanwhile may see them, so they must not be used again.
    """

    iteration: int
    step: int
    number: int
    back: list[int] = []
    worn: list[int] = []


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A rank could not make its batch of a step; `number` as in `Ready`."""

    iteration: int
    step: int
    number: int
    told: Carried


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A rank ends its iteration after it took `taken` steps; `told` is what ended it, if that was an error."""

    iteration: int
    taken: int
    told: Carried | None = None


class Waiting(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The training loop of a rank has been waiting for a step for some seconds."""

    iteration: int
    step: int
    seconds: float


class Warn(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A rank has something to warn of; the main process says it, once."""

    text: str


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Either side closes the link on purpose."""


class Portion(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """One rank's part of a step, in span `number`: `header` bytes, padding to 64, then the body.

    `file` is the memory file that holds the span at `offset`; BESIDE: the bytes came with this message and are the
    rank's; LENT: they lie in this process, and Ready gives them back. `size` counts all bytes of the span. `gone` are
    memory files that the rank may unmap. `last`: the rank gets no step after this one. `lent`: see `Ready`.
    """

    iteration: int
    step: int
    kind: Kind
    header: int
    file: int
    offset: int
    size: int
    number: int
    real_rows: int
    last: bool
    position: int
    gone: list[int]
    lent: bool = False
    bookmark: Bookmark | None = None


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Every rank has its batch of this step; it may be handed to the training loop."""

    iteration: int
    step: int


class Fault(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """There will be no such step: whoever asks for it raises what is told."""

    iteration: int
    step: int
    told: Carried


class End(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The iteration has no steps at all for this rank."""

    iteration: int


class Again(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """To rank 0 itself: a rank closed its link on purpose before the iteration began, so all have to meet again."""

    iteration: int


Message: TypeAlias = Begin | Ready | Failed | Leave | Waiting | Warn | Bye | Portion | Commit | Fault | End | Again

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)

ALIGNMENT = 64


def encode(message: Message) -> bytes:
    """Return the message as bytes."""
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    """Return the message behind the bytes.

    Raises:
        msgspec.DecodeError: the other side speaks another version.
    """
    message: Message = _DECODER.decode(data)
    return message


def body_start(header: int) -> int:
    """Return where the body of a portion begins in its span, for a header of so many bytes."""
    return header + -header % ALIGNMENT
