"""The package's front door: few names, sorted, loaded late."""

import subprocess
import sys
from pathlib import Path

import pytest

import shards

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "numpy", "fsspec", "s3fs", "webdataset", "PIL", "accelerate", "aiohttp")
REPORT = f"import sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}} & set({HEAVY!r})))"


def loaded_after(*lines: str) -> list[str]:
    """Which heavy packages a fresh process has loaded after these lines."""
    run = [sys.executable, "-c", "\n".join([*lines, REPORT])]
    return subprocess.run(run, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()


def test_the_public_names_are_sorted():
    assert shards.__all__ == sorted(shards.__all__)


def test_the_public_names_are_those_that_load_late():
    assert set(shards.__all__) == set(shards._HOME)


@pytest.mark.parametrize("name", shards.__all__)
def test_a_public_name_is_the_one_of_its_file(name):
    thing = getattr(shards, name)
    assert (thing.__name__, thing.__module__) == (name, f"shards.{shards._HOME[name]}")


def test_dir_lists_the_public_names():
    assert dir(shards) == shards.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shards' has no attribute 'Nothing'"):
        shards.Nothing  # noqa: B018 - reading is the act


def test_the_import_loads_no_file_of_the_package():
    code = "import shards, sys; print(*[name for name in sys.modules if name.startswith('shards.')])"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.split() == []


def test_reading_every_public_name_loads_nothing_heavy():
    assert loaded_after("import shards", "[getattr(shards, name) for name in shards.__all__]") == []


def test_writing_and_reading_a_local_dataset_loads_nothing_heavy(tmp_path):
    lines = (
        "from shards import DatasetReader, RowInfo, ShardWriter, open_store",
        f"with ShardWriter(open_store({str(tmp_path)!r}), 'a') as writer:",
        "    writer.add('a', {'txt': b'x'}, RowInfo())",
        f"assert DatasetReader({str(tmp_path)!r}).read([0])[0].key == 'a'",
    )
    assert loaded_after(*lines) == []


def test_naming_a_remote_store_loads_nothing_heavy():
    assert loaded_after("import shards", "shards.DatasetReader('s3://bucket/folder')") == []


def test_using_a_remote_store_loads_fsspec_alone():
    assert loaded_after("import shards", "shards.open_store('memory://a').names()") == ["fsspec"]
