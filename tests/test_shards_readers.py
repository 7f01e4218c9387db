"""Packed shards, read by others: GNU tar, tarfile, webdataset, HF datasets and what wids asks for."""

import io
import json
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from datasets_made import Row, make_dataset
from shards.dataset import DatasetReader
from shards.index import RowInfo


def jpeg(number: int) -> bytes:
    """A real JPEG of noise, 24 x 16 pixels."""
    from PIL import Image

    image = Image.frombytes("RGB", (24, 16), random.Random(number).randbytes(24 * 16 * 3))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return out.getvalue()


def row(number: int) -> Row:
    """A sample as the packer of COCO makes it; captions keep their blanks, marks and letters of all kinds."""
    captions = [f"A picture of {number} cats. ", "\N{SNOWMAN} caf\xe9\ttwo", f"third\n{number}"][: 1 + number % 3]
    about = {
        "image_id": number,
        "file_name": f"{number:012d}.jpg",
        "width": 24,
        "height": 16,
        "captions": captions,
        "caption_ids": [10 * number + place for place in range(len(captions))],
        "license": number % 8,
        "urls": {"coco": f"http://images.cocodataset.org/{number:012d}.jpg", "flickr": ""},
    }
    parts = {"jpg": jpeg(number), "txt": captions[0].encode(), "json": json.dumps(about, ensure_ascii=False).encode()}
    return Row(f"{number:012d}", parts, RowInfo(24, 16, number % 8, tuple(len(c.encode()) for c in captions)))


ROWS = [row(number) for number in range(0, 84, 7)]
MEMBERS = [(f"{row.key}.{suffix}", data) for row in ROWS for suffix, data in row.parts.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve samples in several shards."""
    path = tmp_path_factory.mktemp("packed")
    assert len(make_dataset(path, ROWS, shard_bytes=20480).shardlist) > 1
    return path


@pytest.fixture(scope="module")
def tars(folder) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.tar"))


def test_our_own_reader(folder):
    found = DatasetReader(str(folder)).read(range(len(ROWS)))
    assert [(f"{s.key}.{suffix}", bytes(view)) for s in found for suffix, view in s.parts.items()] == MEMBERS


def test_pythons_tarfile(tars):
    found = []
    for path in tars:
        with tarfile.open(path, "r:") as tar:
            found += [(info.name, tar.extractfile(info).read()) for info in tar]
    assert found == MEMBERS


needs_tar = pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar program here")


def tar(*arguments: str) -> bytes:
    return subprocess.run(["tar", *arguments], check=True, capture_output=True).stdout


@needs_tar
def test_gnu_tar_lists(tars):
    assert [name for path in tars for name in tar("-tf", path).decode().split()] == [name for name, _ in MEMBERS]


@needs_tar
def test_gnu_tar_gives_all_bytes_in_order(tars):
    assert b"".join(tar("-xf", path, "--to-stdout") for path in tars) == b"".join(data for _, data in MEMBERS)


@needs_tar
def test_gnu_tar_unpacks(tars, tmp_path):
    for path in tars:
        tar("-xf", path, "-C", str(tmp_path))
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == sorted(MEMBERS)


@needs_tar
def test_gnu_tar_finds_no_fault(tars):
    for path in tars:
        run = subprocess.run(["tar", "-tvf", path], check=True, capture_output=True)
        assert run.stderr == b""


unclosed = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset lets garbage close its tars


@unclosed
def test_webdataset(tars):
    import webdataset as wds

    found = []
    for sample in wds.WebDataset(tars, shardshuffle=False):
        found += [(f"{sample['__key__']}.{name}", data) for name, data in sample.items() if not name.startswith("__")]
    assert found == MEMBERS


def by_datasets(tars: list[str], folder: Path, *, streaming: bool) -> list[dict]:
    import datasets

    options = {"data_files": {"train": tars}, "split": "train", "cache_dir": str(folder)}
    found = datasets.load_dataset("webdataset", **options, streaming=streaming)
    return list(found.cast_column("jpg", datasets.Image(decode=False)))


@pytest.fixture
def offline(monkeypatch):
    """HF datasets asks no server and shows no bar."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


@pytest.mark.parametrize("streaming", [True, False])
def test_hf_datasets(tars, tmp_path, offline, streaming):
    found = by_datasets(tars, tmp_path, streaming=streaming)
    assert [(example["__key__"], example["jpg"]["bytes"], example["txt"].encode()) for example in found] == [
        (row.key, row.parts["jpg"], row.parts["txt"]) for row in ROWS
    ]
    assert [example["json"] for example in found] == [json.loads(row.parts["json"]) for row in ROWS]


def test_the_manifest_is_a_wids_index(folder):
    """wids asks for a kind, version 1, and per shard a url beside the index, the samples in it and its bytes."""
    index = json.loads((folder / "manifest.json").read_bytes())
    assert (index["__kind__"], index["wids_version"], index["name"]) == ("wids-shard-index-v1", 1, "made")
    found = [(folder / shard["url"], shard["filesize"], shard["nsamples"]) for shard in index["shardlist"]]
    assert [path for path, *_ in found] == sorted(folder.glob("*.tar"))
    for path, size, samples in found:
        assert path.stat().st_size == size
        with tarfile.open(path) as tar:
            assert len({name.partition(".")[0] for name in tar.getnames()}) == samples


@unclosed
@pytest.mark.shared
def test_real_images_come_back_from_every_reader(shared_data, tmp_path):
    import webdataset as wds

    images = sorted((shared_data / "coco" / "val2017").glob("*.jpg"))[:8]
    rows = [Row(path.stem, {"jpg": path.read_bytes(), "txt": b"a caption"}, RowInfo()) for path in images]
    make_dataset(tmp_path, rows, shard_bytes=2**27)
    path = str(tmp_path / "made-000000.tar")
    expected = [row.parts["jpg"] for row in rows]
    with tarfile.open(path) as tar:
        assert [tar.extractfile(info).read() for info in tar if info.name.endswith(".jpg")] == expected
    assert [sample["jpg"] for sample in wds.WebDataset(path, shardshuffle=False)] == expected
    assert [sample.parts["jpg"] for sample in DatasetReader(str(tmp_path)).read(range(8))] == expected
