"""tools/packing.py: the writer's side of packing, with images on a disk and shards in memory."""

import json
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from coco import Record, read_captions
from coco_cases import draw
from crew import Crew
from images import FolderSource
from pack_errors import ChangedImageError, LeftOutError
from packing import Packer, pack_checked, pack_unchecked, refuse_lost
from plan import PlanOptions, make_plan
from verdict import Settings, Verdict


class MemoryWriter:
    """Takes samples as ShardWriter does."""

    def __init__(self):
        self.samples = {}

    def add(self, key, parts, info):
        self.samples[key] = ({suffix: bytes(part) for suffix, part in parts.items()}, info)
        return tuple(xxh3_64_intdigest(part) for part in parts.values())


@pytest.fixture
def source(tmp_path):
    folder, _ = draw(tmp_path)
    return FolderSource(str(folder))


@pytest.fixture
def plan(tmp_path, source):
    return make_plan(read_captions(tmp_path / "captions.json"), source, PlanOptions())


@pytest.fixture
def writer():
    return MemoryWriter()


def good(entry):
    data = Path(entry.place.name).read_bytes()
    return Verdict("", len(data), xxh3_64_intdigest(data), "jpg")


def test_a_sample_has_the_image_the_first_caption_and_all_metadata(source, plan, writer):
    captions = ("e\u0301 日本 🐈  ", "two\n")
    record = Record(5, plan.entries[0].record.file_name, 96, 72, captions, (8, 9), 3, "http://c", "")
    entry = plan.entries[0].__class__(record, plan.entries[0].place)
    Packer(source, writer, skip_bad=False).take_checked(entry, good(entry))
    (parts, info), *_ = writer.samples.values()
    assert list(writer.samples) == ["000000000005"]
    assert list(parts) == ["jpg", "txt", "json"]
    assert parts["jpg"] == Path(entry.place.name).read_bytes()
    assert parts["txt"] == captions[0].encode()
    assert list(json.loads(parts["json"]).items()) == [
        ("image_id", 5),
        ("file_name", record.file_name),
        ("width", 96),
        ("height", 72),
        ("captions", list(captions)),
        ("caption_ids", [8, 9]),
        ("license", 3),
        ("urls", {"coco": "http://c", "flickr": ""}),
    ]
    assert (info.width, info.height, info.license) == (96, 72, 3)
    assert info.caption_bytes == tuple(len(caption.encode()) for caption in captions)


def test_the_member_suffix_is_that_of_the_verdict(source, plan, writer):
    entry = plan.entries[0]
    Packer(source, writer, skip_bad=False).take_checked(
        entry, Verdict("", *[good(entry).size, good(entry).digest], "png")
    )
    (parts, _), *_ = writer.samples.values()
    assert list(parts) == ["png", "txt", "json"]


def test_samples_keep_the_order_of_the_plan(source, plan, writer):
    packer = Packer(source, writer, skip_bad=False)
    told = []
    with Crew(3, Settings(source.path, None)) as crew:
        pack_checked(plan, packer, crew, told.append)
    assert list(writer.samples) == [entry.record.key for entry in plan.entries]
    assert (packer.images, sum(told), packer.bad) == (24, 24, [])
    assert packer.captions == sum(len(entry.record.captions) for entry in plan.entries)


@pytest.mark.parametrize("wrong", [{"digest": 1}, {"size": 1}])
def test_an_image_that_changed_since_its_check_is_an_error(source, plan, writer, wrong):
    entry = plan.entries[0]
    verdict = Verdict("", **{"size": good(entry).size, "digest": good(entry).digest, **wrong}, suffix="jpg")
    with pytest.raises(ChangedImageError, match=entry.record.file_name):
        Packer(source, writer, skip_bad=True).take_checked(entry, verdict)


def test_an_image_that_vanished_since_its_check_is_an_error(source, plan, writer):
    entry = plan.entries[0]
    verdict = good(entry)
    Path(entry.place.name).unlink()
    with pytest.raises(ChangedImageError):
        Packer(source, writer, skip_bad=True).take_checked(entry, verdict)


def test_nothing_is_written_after_a_bad_image_that_may_not_be_left_out(source, plan, writer):
    packer = Packer(source, writer, skip_bad=False)
    for number, entry in enumerate(plan.entries):
        packer.take_checked(entry, Verdict("torn") if number in {2, 5} else good(entry))
    assert (packer.images, len(packer.bad)) == (2, 2)
    with pytest.raises(LeftOutError, match="2 of 24 images are bad") as caught:
        refuse_lost(plan, packer, skip_bad=False)
    assert f"{plan.entries[5].record.file_name} (image id 6): torn" in str(caught.value)


def test_a_bad_image_that_may_be_left_out_is_noted(source, plan, writer):
    packer = Packer(source, writer, skip_bad=True)
    for number, entry in enumerate(plan.entries):
        packer.take_checked(entry, Verdict("torn") if number in {2, 5} else good(entry))
    refuse_lost(plan, packer, skip_bad=True)
    assert (packer.images, len(writer.samples)) == (22, 22)
    assert [(left.image_id, left.kind, left.reason) for left in packer.bad] == [(3, "bad", "torn"), (6, "bad", "torn")]


def test_a_dataset_without_an_image_is_refused_whatever_is_allowed(source, plan, writer):
    packer = Packer(source, writer, skip_bad=True)
    for entry in plan.entries:
        packer.take_checked(entry, Verdict("torn"))
    with pytest.raises(LeftOutError, match="all 24 images are bad"):
        refuse_lost(plan, packer, skip_bad=True)


def test_without_verdicts_images_are_looked_at_but_not_decoded(source, plan, writer):
    torn, page, gone = (Path(entry.place.name) for entry in plan.entries[:3])
    torn.write_bytes(torn.read_bytes()[:500])
    page.write_bytes(b"<html>")
    gone.unlink()
    packer = Packer(source, writer, skip_bad=True)
    pack_unchecked(plan, packer, source.path, lambda _: None)
    assert [left.image_id for left in packer.bad] == [2, 3]
    assert len(writer.samples["000000000001"][0]["jpg"]) == 500
    assert packer.images == 22
