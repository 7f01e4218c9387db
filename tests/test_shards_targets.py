"""URLs into shards."""

import shutil

import fsspec
import pytest

from datasets_made import make_dataset, make_rows
from shards.errors import StoreError, UrlError
from shards.targets import expand, find_targets
from stores_made import Broken
from tars_made import END


@pytest.fixture
def folder(tmp_path):
    make_dataset(tmp_path / "made", make_rows(30), shard_bytes=20 * 2**10)
    return tmp_path / "made"


def named(*urls: str) -> list[str]:
    return [target.name for target in find_targets([str(url) for url in urls]).shards]


def test_a_folder_or_its_manifest_names_all_its_shards(folder):
    tars = sorted(path.name for path in folder.glob("*.tar"))
    assert len(tars) > 1
    assert named(folder) == named(f"{folder}/") == named(folder / "manifest.json") == tars
    found = find_targets([str(folder)])
    assert len(found.datasets) == 1
    assert all(target.info.url == target.name for target in found.shards)


def test_a_tar_beside_a_manifest_is_known_by_it(folder):
    (target,) = find_targets([f"{folder}/made-000001.tar"]).shards
    assert (target.name, target.info.url, target.url) == (
        "made-000001.tar",
        "made-000001.tar",
        f"{folder}/made-000001.tar",
    )


def test_a_tar_alone_is_taken_as_it_is(folder, tmp_path):
    shutil.copy(folder / "made-000001.tar", tmp_path / "x.tar")
    (tmp_path / "manifest.json").write_text('{"__kind__": "of others"}')
    (target,) = find_targets([str(tmp_path / "x.tar")]).shards
    assert target.info is None


def test_a_pattern_names_its_tars_in_its_order(tmp_path):
    assert named(f"{tmp_path}/a-{{2..0}}.tar", f"{tmp_path}/b.tgz") == ["a-2.tar", "a-1.tar", "a-0.tar", "b.tgz"]


def test_a_folder_of_tars_without_a_manifest_names_them(tmp_path):
    (tmp_path / "b.tar").write_bytes(END)
    (tmp_path / "a.tar.gz").write_bytes(END)
    (tmp_path / "note.txt").write_bytes(b"")
    assert named(tmp_path) == ["a.tar.gz", "b.tar"]
    assert find_targets([str(tmp_path)]).findings == []


def test_a_packed_folder_that_lost_its_manifest_is_told(folder):
    (folder / "manifest.json").unlink()
    found = find_targets([str(folder)])
    assert len(found.shards) > 1
    assert [(f.code, f.url) for f in found.findings] == [("missing-file", f"{folder}/manifest.json")]


def test_a_manifest_that_cannot_be_trusted_is_told(folder):
    (folder / "manifest.json").write_text("{")
    assert [f.code for f in find_targets([str(folder)]).findings] == ["bad-manifest"]


def test_tars_lie_on_any_store(folder):
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/targets/made/{path.name}", path.read_bytes())
    assert named("memory://targets/made") == named(folder)
    (target,) = find_targets(["memory://targets/made/made-000000.tar"]).shards
    assert (target.url, target.info.url) == ("memory://targets/made/made-000000.tar", "made-000000.tar")


def test_a_tar_may_lie_in_the_root_of_a_store():
    fsspec.filesystem("memory").pipe_file("/root.tar", END)
    (target,) = find_targets(["memory://root.tar"]).shards
    assert target.store.size(target.name) == len(END)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a-{0..1.tar", "without its other half"),
        ("a-{0}.tar", "neither a range nor alternatives"),
        ("a-{0..99999999999}.tar", "more than 1,000,000"),
        ("a-{0..1999}-{0..1999}.tar", "more than 1,000,000"),
        ("a-{0,0}.tar", "more than once"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused(pattern, problem):
    with pytest.raises(UrlError, match=problem):
        expand(pattern)


def test_what_names_no_shards_is_refused(tmp_path):
    for url in (tmp_path, tmp_path / "absent", tmp_path / "absent.json"):
        with pytest.raises(UrlError, match="holds no shards; write a tar"):
            find_targets([str(url)])


def test_a_shard_that_is_named_twice_is_refused(folder):
    with pytest.raises(UrlError, match="is named twice"):
        find_targets([str(folder), f"{folder}/made-000001.tar"])


def test_a_folder_that_cannot_be_read_is_a_store_error_without_secrets():
    assert Broken.protocol == "broken"
    with pytest.raises(StoreError) as caught:
        find_targets(["broken://a/b"], storage_options={"secret": "hush-hush"})
    assert "hush-hush" not in str(caught.value)
