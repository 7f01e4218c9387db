"""57 tars by others: what inspect and lint say of each, beside what webdataset and tarfile make of it."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from shards.grouped import grouped
from shards.lint import ShardLint, lint_shard
from shards.members import Member
from shards.overview import lines, look
from shards.scan import scan
from shards.store import open_store

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.shared,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset lets garbage close its tars
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SOUND = {  # the warnings of tars without an error
    "derived_here/dot_slash_prefix.tar": {"dot-slash", "name-rule"},
    "derived_here/dots_in_dirs.tar": {"dot-in-folder", "name-rule"},
    "derived_here/empty.tar": {"no-members"},
    "derived_here/gnu_long.tar": {"name-rule"},
    "derived_here/multi_dot_ext.tar": {"name-rule"},
    "derived_here/upper_ext.tar": {"upper-suffix"},
    "odd/tar-split/go/pax-nul-xattrs.tar": {"empty-part"},
    "odd/tar-split/go/star.tar": set(),
    "odd/tar-split/go/ustar.tar": {"name-rule"},
    "odd/tar-split/go/v7.tar": set(),
    "shards/aistore/small-mnist-3.tar": {"name-rule"},
    "shards/clip-retrieval/image1.tar": set(),
    "shards/clip-retrieval/image2.tar": set(),
    "shards/clip-retrieval/image3.tar": set(),
    "shards/pytorch-data/examples/vision/fakedata/caltech101/Annotations.tar": {"directory", "name-rule"},
    "shards/pytorch-data/test/_fakedata/bytes.tar": {"directory", "name-rule"},
    "shards/pytorch-data/test/_fakedata/csv.tar": {"directory", "name-rule"},
    "shards/pytorch-data/test/_fakedata/txt.tar": {"directory", "name-rule"},
    "shards/pytorch-data/test/_fakedata/wds.tar": {"name-rule"},
}
DAMAGED = {  # the errors of all others, by code and byte
    "derived_here/bad_checksum.tar": [("bad-header", 268288), ("unreached-members", 269312)],
    "derived_here/duplicate_member_in_sample.tar": [("duplicate-part", 106496)],
    "derived_here/gz_misnamed.tar": [("compressed", 0)],
    "derived_here/gz_named.tar.gz": [("compressed", 0)],
    "derived_here/missing_jpg.tar": [("half-sample", 106496), ("half-sample", 256512), ("half-sample", 411648)],
    "derived_here/path_traversal.tar": [("unsafe-name", b) for b in (0, 104448, 105472, 106496, 222720, 223744)],
    "derived_here/special_members.tar": [("half-sample", 0), ("link", 1536), ("link", 2048)],
    "derived_here/trunc_between_sample_members.tar": [("half-sample", 1150464), ("missing-end", 1312768)],
    "derived_here/trunc_mid_data.tar": [("cut-data", 1151488)],
    "derived_here/trunc_mid_header.tar": [("half-sample", 1150464), ("cut-header", 1312768)],
    "derived_here/zero_size_members.tar": [("empty-image", 0), ("empty-image", 2560)],
    "odd/cpython/testtar.tar.xz": [("compressed", 0)],
    "odd/tar-rs/duplicate_dirs.tar": [("no-samples", 0)],
    "odd/tar-rs/empty_filename.tar": [("name-nul", 0), ("no-name", 0), ("missing-end", 512)],
    "odd/tar-rs/pax2.tar": [("link", 6656), ("link", 8192)],
    "odd/tar-rs/reading_files.tar": [("no-samples", 0)],
    "odd/tar-rs/simple_missing_last_header.tar": [("no-samples", 0)],
    "odd/tar-rs/spaces.tar": [("no-samples", 0)],
    "odd/tar-rs/sparse-1.tar": [("sparse", 0)],
    "odd/tar-split/asm/longlink.tar.gz": [("compressed", 0)],
    "odd/tar-split/go/issue10968.tar": [("not-a-tar", 0)],
    "odd/tar-split/go/issue11169.tar": [("cut-header", 0)],
    "odd/tar-split/go/nil-uid.tar": [("missing-end", 1024)],
    "odd/tar-split/go/pax-bad-hdr-file.tar": [("bad-extension", 0), ("missing-end", 2560)],
    "odd/tar-split/go/pax-bad-hdr-large.tar.bz2": [("compressed", 0)],
    "odd/tar-split/go/pax-bad-mtime-file.tar": [("missing-end", 2560)],
    "odd/tar-split/go/pax-nil-sparse-hole.tar": [("sparse", 1024)],
    "odd/tar-split/go/pax-records.tar": [("no-samples", 0)],
    "odd/tar-split/go/pax-sparse-big.tar": [("sparse", 1024)],
    "odd/tar-split/go/sparse-formats.tar": [("sparse", 0), ("sparse", 9216), ("sparse", 11776), ("sparse", 13824)],
    "odd/tar-split/go/trailing-slash.tar": [("no-samples", 0)],
    "odd/tar-split/go/ustar-file-devs.tar": [("no-samples", 0)],
    "odd/tar-split/go/writer-big-long.tar": [("cut-data", 1024)],
    "shards/pytorch-data/test/_fakedata/bytes.tar.gz": [("compressed", 0)],
    "shards/pytorch-data/test/_fakedata/csv.tar.gz": [("compressed", 0)],
    "shards/pytorch-data/test/_fakedata/json.tar.gz": [("compressed", 0)],
    "shards/webdataset/sample.tgz": [("compressed", 0)],
}
ODDEST = "odd/cpython/testtar.tar"
"""Members of every kind; a copy that went through text mode has lost bytes, so it is not held to bytes."""
WHOLE_BYTES = 435200
"""The size of that tar where nothing was lost."""
SILENT = {  # what webdataset reads to its end without a word, and how many samples it makes of 32
    "derived_here/bad_checksum.tar": 3,
    "derived_here/trunc_between_sample_members.tar": 11,
    "derived_here/trunc_mid_header.tar": 11,
}


def lint(path: Path) -> ShardLint:
    return lint_shard(open_store(str(path.parent)), path.name)


def by_webdataset(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    import webdataset as wds

    found = wds.WebDataset(str(path), shardshuffle=False, empty_check=False)
    return [(s["__key__"], {name: data for name, data in s.items() if not name.startswith("__")}) for s in found]


def by_us(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    data = path.read_bytes()
    members = (found for found in scan(open_store(str(path.parent)), path.name) if isinstance(found, Member))
    return [
        (s.key, {name: data[m.offset : m.offset + m.size] for name, m in s.parts.items()}) for s in grouped(members)
    ]


def test_the_tables_name_all_tars(shared_data):
    told = (shared_data / "wds" / "MANIFEST.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[0] for line in told} == {*SOUND, *DAMAGED, ODDEST}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_tar_has_no_error_and_the_samples_of_webdataset(shared_data, name):
    path = shared_data / "wds" / name
    found = lint(path).found.listed()
    assert {f.code for f in found} == SOUND[name]
    assert {f.severity for f in found} <= {"warning"}
    assert by_us(path) == by_webdataset(path)


@pytest.mark.parametrize("name", [name for name in SOUND if name.endswith(".tar")])
def test_a_sound_tar_has_the_members_of_tarfile(shared_data, name):
    path = shared_data / "wds" / name
    with tarfile.open(path, "r:") as tar:
        expected = [(i.name + "/" * i.isdir(), i.offset, i.offset_data, i.size) for i in tar]
    found = [
        (m.name, m.start, m.offset, m.size)
        for m in scan(open_store(str(path.parent)), path.name)
        if isinstance(m, Member)
    ]
    assert found == expected


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_tar_is_named_with_byte_and_reason(shared_data, name):
    found = [f for f in lint(shared_data / "wds" / name).found.listed() if f.severity == "error"]
    assert [(f.code, f.byte) for f in found] == DAMAGED[name]
    assert all(f.words and f.url.endswith(name) for f in found)


@pytest.mark.parametrize(("name", "samples"), SILENT.items())
def test_what_webdataset_loses_without_a_word_is_an_error(shared_data, name, samples):
    path = shared_data / "wds" / name
    assert len(by_webdataset(path)) == samples
    assert any(f.severity == "error" for f in lint(path).found.listed())


def test_the_oddest_tar_is_walked_to_its_end(shared_data):
    path = shared_data / "wds" / ODDEST
    found = list(scan(open_store(str(path.parent)), path.name))
    codes = {f.code for f in found if not isinstance(f, Member)}
    assert ("bad-header" in codes) == (path.stat().st_size != WHOLE_BYTES)
    assert codes >= {"link", "directory", "device", "sparse"}
    names = [m.raw for m in found if isinstance(m, Member)]
    assert b"ustar/conttype" in names
    assert b"pax/umlauts-\xc3\x84\xc3\x96\xc3\x9c\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f" in names
    assert len(names) >= 35


@pytest.mark.parametrize("name", [*SOUND, *DAMAGED, ODDEST])
def test_inspect_tells_of_any_tar(shared_data, name):
    path = shared_data / "wds" / name
    _, overview = look(open_store(str(path.parent)), path.name, samples=3)
    told = list(lines(overview))
    assert told[0] == str(path)
    assert all(line.isprintable() for line in told)
    if name in SOUND:
        assert overview.samples == len(by_webdataset(path))
        assert overview.faults == []


MEASURE = """
import contextlib, io, json, re, sys
from shards.__main__ import main
said = io.StringIO()
with contextlib.redirect_stdout(said):
    status = [main([command, *sys.argv[1:], "--json"]) for command in ("lint", "inspect")]
documents = said.getvalue().split("\\n}\\n")
found = [json.loads(text + "}")["shards"] for text in documents if text]
kib = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
print(json.dumps([status, found[0], len(found[1]), kib]))
"""
# not getrusage's ru_maxrss: after a fork that is at least what the parent had, which is pytest


def test_both_commands_over_all_tars_need_little_memory(shared_data):
    paths = [str(shared_data / "wds" / name) for name in (*SOUND, *DAMAGED, ODDEST)]
    run = [sys.executable, "-c", MEASURE, *paths]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    status, linted, inspected, kib = json.loads(done.stdout)
    assert (status, linted, inspected) == ([1, 0], len(paths), len(paths))
    assert len(paths) == 57
    assert kib < 256 * 2**10
