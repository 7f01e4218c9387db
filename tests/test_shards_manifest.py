"""The manifest: rows located in shards, a valid wids index, and no changed byte believed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets_made import law, make_dataset, make_rows
from shards.dataset import DatasetReader
from shards.errors import ManifestError, MismatchError
from shards.manifest import VERSION, Manifest, ShardInfo


def info(number: int, samples: int, captions: int = 0, *, name: str = "toy") -> ShardInfo:
    url = f"{name}-{number:06d}.tar"
    return ShardInfo(
        url=url,
        nsamples=samples,
        filesize=10240 * (samples + 1),
        captions=captions,
        xxh3_128=f"{number:032x}",
        index_url=url + ".index",
        index_filesize=100,
        index_xxh3_128=f"{number + 1:032x}",
    )


def of(counts: list[tuple[int, int]], *, name: str = "toy") -> Manifest:
    shardlist = [info(number, samples, captions, name=name) for number, (samples, captions) in enumerate(counts)]
    return Manifest(name, shardlist)


def read(data: bytes) -> Manifest:
    return Manifest.from_bytes(data, url="d/manifest.json")


def changed(change: Callable[[dict], object]) -> bytes:
    file = json.loads(DATA)
    change(file)
    return json.dumps(file).encode()


TWO = of([(3, 5), (2, 2)])
DATA = TWO.to_bytes()
counts = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12)


@law
@given(counts)
def test_what_is_written_is_read(counts):
    manifest = of(counts)
    found = read(manifest.to_bytes())
    assert (found.name, found.shardlist) == (manifest.name, manifest.shardlist)


@law
@given(counts)
def test_locate_walks_through_all_rows_in_order(counts):
    manifest = of(counts)
    expected = [(shard_no, row) for shard_no, (samples, _) in enumerate(counts) for row in range(samples)]
    assert [manifest.locate(row) for row in range(manifest.samples)] == expected


@law
@given(counts)
def test_locate_caption_walks_through_all_captions_in_order(counts):
    manifest = of(counts)
    expected = [(shard_no, number) for shard_no, (_, captions) in enumerate(counts) for number in range(captions)]
    assert [manifest.locate_caption(number) for number in range(manifest.captions)] == expected


@law
@given(counts)
def test_a_shard_begins_where_the_ones_before_it_end(counts):
    manifest = of(counts)
    assert [manifest.first_row(no) for no in range(len(counts))] == [
        sum(samples for samples, _ in counts[:no]) for no in range(len(counts))
    ]


@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_that_does_not_exist_is_an_index_error(row):
    with pytest.raises(IndexError, match=f"toy has 5 rows, not one numbered {row}"):
        TWO.locate(row)


@pytest.mark.parametrize("number", [-1, 7])
def test_a_caption_that_does_not_exist_is_an_index_error(number):
    with pytest.raises(IndexError, match=f"toy has 7 captions, not one numbered {number}"):
        TWO.locate_caption(number)


def test_totals_are_the_sums_of_the_shards():
    assert (TWO.samples, TWO.captions, TWO.bytes) == (5, 7, 10240 * 7)


def test_the_digest_does_not_depend_on_names():
    assert of([(3, 5)], name="one").digest == of([(3, 5)], name="other").digest


@pytest.mark.parametrize("field", ["nsamples", "captions", "filesize", "xxh3_128", "index_xxh3_128"])
def test_the_digest_depends_on_the_data(field):
    file = json.loads(DATA)
    other = [ShardInfo(**(shard | {field: shard[field] * 2})) for shard in file["shardlist"]]
    assert Manifest("toy", other).digest != TWO.digest


def test_it_is_a_valid_wids_index():
    """By webdataset's wids specification, version 1: a kind, a version, and shards with url, nsamples and filesize."""
    file = json.loads(DATA)
    assert (file["__kind__"], file["wids_version"]) == ("wids-shard-index-v1", 1)
    assert [(shard["url"], shard["nsamples"], shard["filesize"]) for shard in file["shardlist"]] == [
        ("toy-000000.tar", 3, 40960),
        ("toy-000001.tar", 2, 30720),
    ]


def test_fields_this_reader_does_not_know_are_passed_over():
    def add(file: dict) -> None:
        file["license"] = {"url": [1, None]}
        file["shardlist"][0]["md5sum"] = "0"

    assert read(changed(add)).shardlist == TWO.shardlist


def test_the_fields_that_only_wids_needs_may_lack():
    def drop(file: dict) -> None:
        del file["__kind__"], file["wids_version"]

    assert read(changed(drop)).shardlist == TWO.shardlist


def test_a_newer_version_is_refused_with_both_numbers():
    with pytest.raises(ManifestError, match=f"version 9 is newer than {VERSION}.*update"):
        read(changed(lambda file: file.update(shardstream_version=9)))


def test_a_newer_version_is_told_whatever_else_it_holds():
    with pytest.raises(ManifestError, match="newer"):
        read(b'{"shardstream_version": 9, "shardlist": {"other": "layout"}}')


@pytest.mark.parametrize("version", [0, -1, "1", 1.5, None])
def test_a_version_that_does_not_exist_is_refused(version):
    with pytest.raises(ManifestError):
        read(changed(lambda file: file.update(shardstream_version=version)))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"<html>", b"\xff", DATA[:-5], DATA + b"x", b"[" * 10**5])
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(ManifestError, match=r"manifest d/manifest\.json: it (cannot be read|is no manifest)"):
        read(data)


def test_a_deeply_nested_unknown_field_is_refused():
    with pytest.raises(ManifestError, match="cannot be read"):
        read(DATA.replace(b"{", b'{"deep": ' + b"[" * 10**5 + b"]" * 10**5 + b",", 1))


@pytest.mark.parametrize("field", ["shardstream_version", "name", "nsamples", "captions", "shardlist"])
def test_a_field_that_lacks_is_named(field):
    with pytest.raises(ManifestError, match=field):
        read(changed(lambda file: file.pop(field)))


@pytest.mark.parametrize("field", ShardInfo.__struct_fields__)
def test_a_field_that_lacks_in_a_shard_is_named(field):
    with pytest.raises(ManifestError, match=field):
        read(changed(lambda file: file["shardlist"][1].pop(field)))


@pytest.mark.parametrize("field", ["nsamples", "filesize", "captions", "index_filesize"])
def test_a_negative_count_is_refused(field):
    with pytest.raises(ManifestError, match=field):
        read(changed(lambda file: file["shardlist"][0].update({field: -1})))


@pytest.mark.parametrize(("field", "said"), [("nsamples", "counts 6 samples"), ("captions", "counts 6 captions")])
def test_totals_that_do_not_add_up_are_refused(field, said):
    with pytest.raises(ManifestError, match=said):
        read(changed(lambda file: file.update({field: 6})))


@pytest.mark.parametrize(
    "url",
    [
        "/toy-000000.tar",
        "../toy-000000.tar",
        "a/toy-000000.tar",
        "s3://b/toy-000000.tar",
        "toy-000000.tar\n",
        "toy-00000.tar",
        "toy-\u0660\u0660\u0660\u0660\u0660\u0660.tar",
        "other-000000.tar",
        "manifest.json",
        "",
        "toy-000001.tar",
    ],
)
def test_a_shard_by_another_name_than_its_datasets_is_refused(url):
    with pytest.raises(ManifestError, match="it lists"):
        read(changed(lambda file: file["shardlist"][0].update(url=url, index_url=url + ".index")))


@pytest.mark.parametrize("url", ["../toy-000000.tar.index", "/etc/passwd", "toy-000001.tar.index", "toy-000000.tar"])
def test_an_index_by_another_name_than_its_shards_is_refused(url):
    with pytest.raises(ManifestError, match="it lists"):
        read(changed(lambda file: file["shardlist"][0].update(index_url=url)))


@pytest.mark.parametrize("name", ["", "..", "a/b", "toy.*", "[a-z]+"])
def test_a_name_against_the_rules_is_refused(name):
    with pytest.raises(ManifestError, match="its name"):
        read(changed(lambda file: file.update(name=name)))


def test_every_single_byte_change_is_refused_here_or_by_the_files_it_lists(tmp_path: Path):
    make_dataset(tmp_path, make_rows(1, part_bytes=20), name="a")
    data = (tmp_path / "manifest.json").read_bytes()
    whole = read(data)
    for at, byte in enumerate(data):
        for other in {*range(256)} - {byte}:
            _refused_or_equal(tmp_path, whole, data[:at] + bytes([other]) + data[at + 1 :])


def _refused_or_equal(folder: Path, whole: Manifest, data: bytes) -> None:
    try:
        found = read(data)
    except ManifestError:
        return
    if (found.name, found.shardlist) == (whole.name, whole.shardlist):
        return
    (folder / "manifest.json").write_bytes(data)
    with pytest.raises((MismatchError, FileNotFoundError)):
        DatasetReader(str(folder)).read(range(found.samples))


@pytest.mark.parametrize("data", [b'{"images": [], "annotations": []}', b"[]"])
def test_other_json_is_told_from_a_manifest_that_was_cut(data):
    with pytest.raises(ManifestError, match=r"it is no manifest of packed shards .*; give the folder that"):
        Manifest.from_bytes(data, url="captions.json")
