"""Tars by their names."""

import subprocess
import sys

import pytest
from torch.utils.data import DataLoader

from packed import jpeg_of, key_of, make_packed
from stream.errors import OptionError, SourceError
from stream.tars import Tars, expand, names_tars

SAMPLES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.mark.parametrize("url", ["a.tar", "s3://b/a-{000..009}.tar", "a.tar.gz", "{a,b}", "a}"])
def test_a_url_of_tars_is_known_by_its_end_or_its_braces(url):
    assert names_tars(url)


@pytest.mark.parametrize("url", ["folder", "s3://b/folder/", "a/manifest.json", "tar"])
def test_a_packed_dataset_is_no_tar(url):
    assert not names_tars(url)


def test_a_range_keeps_its_zeros_and_its_order():
    assert expand("c-{098..101}.tar") == ["c-098.tar", "c-099.tar", "c-100.tar", "c-101.tar"]
    assert expand("{b,a}-{0..1}.tar") == ["b-0.tar", "b-1.tar", "a-0.tar", "a-1.tar"]
    assert expand("one.tar") == ["one.tar"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("c-{000..009.tar", "a brace without its other half"),
        ("c-000}.tar", "a brace without its other half"),
        ("c-{}.tar", "braces that name neither a range nor alternatives"),
        ("c-{000}.tar", "braces that name neither a range nor alternatives"),
        ("c-{000-009}.tar", "braces that name neither a range nor alternatives"),
        ("{a,b}", "names 'a', which is no tar"),
        ("{a,b}/c.zip", "names 'a/c.zip', which is no tar"),
        ("{a,a}.tar", "names 'a.tar' more than once"),
        ("c-{0..9999999}.tar", "more than 1,000,000 shards"),
        ("pipe:cat c-{0..9}.tar", "is a command"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused(pattern, words):
    with pytest.raises(OptionError, match=words) as caught:
        Tars(pattern)
    assert caught.value.got == pattern


def test_samples_come_undecoded_tar_by_tar(made):
    last = len(made.tars()) - 1
    found = list(Tars(f"{made.url}/made-{{000000..{last:06d}}}.tar"))
    assert [sample["__key__"] for sample in found] == made.keys
    assert [sample["jpg"] for sample in found] == [jpeg_of(number) for number in range(SAMPLES)]
    assert found[0]["__url__"] == made.tars()[0]


def test_one_tar_gives_its_samples_again_in_each_epoch(made):
    tar = Tars(made.tars()[0])
    first = [sample["__key__"] for sample in tar]
    assert first == made.keys[: len(first)]
    assert [sample["__key__"] for sample in tar] == first != []


def test_workers_share_the_tars_out(made):
    last = len(made.tars()) - 1
    for pattern, expected in ((f"{made.url}/made-{{000000..{last:06d}}}.tar", made.keys), (made.tars()[0], None)):
        keys = [sample["__key__"] for sample in DataLoader(Tars(pattern), batch_size=None, num_workers=2)]
        assert sorted(keys) == (expected or [sample["__key__"] for sample in Tars(pattern)])


def test_a_job_of_many_processes_is_none_of_its_business(made, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(Tars(made.tars()[0])))["__key__"] == key_of(0)


def test_a_missing_tar_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.tar"):
        list(Tars(str(tmp_path / "none.tar")))


def test_a_store_that_webdataset_cannot_open_is_named():
    with pytest.raises(SourceError, match=r"^s3://bucket/c-0\.tar: webdataset cannot open s3:// by itself"):
        list(Tars("s3://bucket/c-{0..1}.tar"))


def test_webdataset_is_imported_by_who_reads_alone():
    program = "import sys; from stream.tars import Tars; Tars('a-{0..9}.tar'); assert 'webdataset' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
