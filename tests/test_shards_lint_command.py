"""`python -m shards lint`: lines, counts, JSON and exit statuses."""

import json
import os

import pytest

from datasets_made import make_dataset, make_rows
from shards.lint_command import main
from tars_made import END, member, sample


@pytest.fixture
def folder(tmp_path):
    make_dataset(tmp_path / "made", make_rows(30), shard_bytes=20 * 2**10)
    return tmp_path / "made"


@pytest.fixture
def ask(capsys):
    """Ask in this process; return (exit status, lines of standard output, standard error)."""

    def asked(*arguments, decoder=lambda: pytest.fail("no decoder was asked for")):
        try:
            status = main([str(argument) for argument in arguments], image_decoder=decoder)
        except SystemExit as exc:
            status = exc.code
        shown = capsys.readouterr()
        return status, shown.out.splitlines(), shown.err

    return asked


def tar(path, *members: bytes):
    path.write_bytes(b"".join(members) + END)
    return path


def test_a_sound_dataset_is_one_line(ask, folder):
    status, out, err = ask(folder)
    tars = list(folder.glob("*.tar"))
    size = sum(path.stat().st_size for path in tars)
    assert (status, err) == (0, "")
    assert out == [f"{len(tars)} shards, 30 samples, {size:,} bytes: 0 errors, 0 warnings"]


def test_an_error_is_a_line_and_exit_status_1(ask, tmp_path):
    path = tar(tmp_path / "a.tar", *sample("a"), member("a.bin", kind=b"2"))
    status, out, _ = ask(path)
    assert status == 1
    assert out[0].startswith(f"error link {path} byte 2560 a.bin: ")
    assert out[1:] == [f"1 shard, 1 sample, {path.stat().st_size:,} bytes: 1 error, 0 warnings"]


def test_a_warning_is_exit_status_1_with_strict_only(ask, tmp_path):
    path = tar(tmp_path / "a.tar", *sample("a"), member("folder/", kind=b"5"))
    assert ask(path)[0] == 0
    status, out, _ = ask(path, "--strict")
    assert status == 1
    assert out[-1].endswith("0 errors, 1 warning")


@pytest.mark.parametrize("arguments", [(), ("a-{0.tar",), ("a.tar", "--threads", "0"), ("absent-folder",)])
def test_wrong_usage_is_exit_status_2(ask, arguments):
    status, out, err = ask(*arguments)
    assert (status, out) == (2, [])
    assert err


def test_a_store_that_cannot_be_read_is_exit_status_1(ask):
    status, _, err = ask("nonsense://bucket/folder")
    assert status == 1
    assert err.startswith("lint: ")


def test_a_missing_tar_is_an_error_and_the_others_are_looked_at(ask, tmp_path):
    tar(tmp_path / "a-1.tar", *sample("a"))
    status, out, _ = ask(f"{tmp_path}/a-{{0..1}}.tar")
    assert status == 1
    assert out[0].startswith(f"error missing-file {tmp_path}/a-0.tar: ")
    assert out[1].startswith("2 shards, 1 sample, ")


def test_a_key_in_two_shards_is_told(ask, tmp_path):
    first = tar(tmp_path / "a-0.tar", *sample("x"), *sample("y"))
    tar(tmp_path / "a-1.tar", *sample("z"), *sample("y"))
    status, out, _ = ask(f"{tmp_path}/a-{{0..1}}.tar")
    assert status == 1
    assert out[0].startswith(f"error key-in-two-shards {tmp_path}/a-1.tar byte 2560 y: {first} has this key too")
    assert len(out) == 2


def test_a_dataset_with_faults_names_them(ask, folder):
    (folder / "made-000001.tar").unlink()
    (folder / "other.tar").write_bytes(b"")
    _, out, _ = ask(folder)
    assert [line.split()[1] for line in out[:-1]] == ["missing-file", "surplus-file"]


def test_json_is_one_document_with_the_documented_keys(ask, tmp_path):
    path = tar(tmp_path / "a.tar", *[member(f"./{number}.txt") for number in range(3)])
    status, out, _ = ask(path, "--json")
    found = json.loads("\n".join(out))
    assert list(found) == ["shards", "samples", "bytes", "errors", "warnings", "findings"]
    assert (status, found["shards"], found["samples"], found["errors"], found["warnings"]) == (0, 1, 3, 0, 9)
    assert list(found["findings"][0]) == ["code", "severity", "url", "byte", "name", "words", "more"]
    assert sum(1 + finding["more"] for finding in found["findings"]) == 9


def test_images_are_decoded_on_request(ask, tmp_path):
    def refuse(data):
        raise ValueError("no image at all")

    path = tar(tmp_path / "a.tar", *sample("a"))
    assert ask(path)[0] == 0
    status, out, _ = ask(path, "--decode", decoder=lambda: refuse)
    assert status == 1
    assert out[0] == f"error bad-image {path} byte 0 a.jpg: no image at all"


def test_findings_do_not_depend_on_threads(ask, tmp_path):
    for number in range(9):
        tar(tmp_path / f"a-{number}.tar", *sample("same"), member(f"{number}.jpg"))
    told = [ask(tmp_path, "--threads", threads) for threads in (1, 2, 7)]
    assert told[0] == told[1] == told[2]
    assert len(told[0][1]) > 9


def test_other_stores_give_the_same_findings(ask, folder):
    import fsspec

    (folder / "made-000001.tar.index").unlink()
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/linted/{path.name}", path.read_bytes())
    told = [line.replace(str(folder), "memory://linted") for line in ask(folder)[1]]
    assert ask("memory://linted", "--storage-options", "{}")[1] == told
    assert len(told) == 2


def test_what_is_no_file_to_read_is_told_at_once(ask, tmp_path):
    os.mkfifo(tmp_path / "a.tar")
    (tmp_path / "b.tar").mkdir()
    status, out, _ = ask(f"{tmp_path}/{{a,b}}.tar", "nonsense://bucket/c.tar")
    assert status == 1
    assert [line.split()[1] for line in out[:-1]] == ["empty-file", "unreadable", "unreadable"]
