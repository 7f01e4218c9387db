"""FORMAT.md says what the code does."""

import json
import re
import tarfile
from pathlib import Path

import msgspec
import pytest

from datasets_made import make_dataset, make_rows
from shards import index, manifest, sample, tar, writer
from shards.index import IndexBuilder, RowInfo, ShardIndex

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "shards" / "FORMAT.md").read_text(encoding="utf-8")


def table(first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with this cell, without the head."""
    lines = TEXT.split(f"\n| {first_cell} |", 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def example() -> bytes:
    builder = IndexBuilder()
    parts = {"jpg": (512, 1000, 0x0123456789ABCDEF), "txt": (2048, 7, 0xFEDCBA9876543210)}
    builder.add("000000000042", parts, RowInfo(640, 480, 3, (7, 9)))
    digest = "00112233445566778899aabbccddeeff"
    return builder.to_bytes(shard="coco-000000.tar", shard_bytes=10240, shard_xxh3_128=digest)


def header(data: bytes) -> dict:
    return json.loads(data[16 : 16 + int.from_bytes(data[12:16], "little")])


def test_the_versions_are_those_of_the_code():
    versions = {row[2] for row in table("file")}
    assert {f"index version {index.VERSION}", f"manifest version {manifest.VERSION}"} <= versions


def test_the_columns_and_their_types_are_those_of_the_code():
    written = header(example())["columns"]
    told = []
    for cell, kind, values, _ in table("column"):
        (name,) = names(cell)
        suffixes = ("jpg", "txt") if "<suffix>" in name else ("",)
        told += [(name.replace("<suffix>", suffix), kind, values) for suffix in suffixes]
    assert {(name, kind) for name, kind, _ in told} == {(column["name"], column["type"]) for column in written}
    assert {name for name, _, values in told if values == "rows"} == {c["name"] for c in written if c["count"] == 1}


def test_the_fields_of_the_header_are_those_of_the_code():
    told = [name for row in table("field") for name in names(row[0])]
    assert set(index.Header.__struct_fields__) <= set(re.findall(r"\| `(\w+)` \|", TEXT.split("## Index")[1]))
    assert told[:2] == ["image_id", "file_name"]


def test_the_fields_of_the_manifest_are_those_of_the_code():
    told = re.findall(r"`(\w+)`", TEXT.split("## Manifest")[1].split("`url` and `index_url` follow")[0])
    fields = {field.encode_name for field in msgspec.structs.fields(manifest._File)}
    assert (fields | set(manifest.ShardInfo.__struct_fields__)) - set(told) == set()


def test_the_example_is_what_the_code_writes():
    start, area = (bytes.fromhex(block) for block in blocks("hex"))
    (text,) = blocks("json")
    told = text.replace("\n", "").encode()
    assert start + told + b" " * (-len(told) % 8) + area == example()


def test_the_example_is_read_as_it_is_told():
    found = ShardIndex(example(), url="example")
    assert list(found.keys()) == ["000000000042"]
    assert (found.span(0, "jpg"), found.span(0, "txt")) == ((512, 1000), (2048, 7))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (r"has 1 to (\d+) characters of `A-Z a-z 0-9 _ -` \(no dots", sample.MAX_KEY_BYTES),
        (r"name: 1 to (\d+) characters", writer._MAX_NAME_BYTES),
        (r"1 to (\d+) characters of `a-z 0-9`", sample._MAX_SUFFIX_BYTES),
        (r"most (\d+) bytes and every tar reader", tar.MAX_NAME_BYTES),
        (r"next multiple of (\d+,\d+)", tar.RECORD),
        (r"`shard_bytes` long \((\d+) MiB", writer.DEFAULT_SHARD_BYTES // 2**20),
    ],
)
def test_a_number_is_that_of_the_code(words, number):
    assert int(re.search(words, TEXT)[1].replace(",", "")) == number


def test_the_header_fields_of_a_member_are_those_told(tmp_path):
    make_dataset(tmp_path, make_rows(1))
    with tarfile.open(tmp_path / "made-000000.tar") as archive:
        member = archive.getmembers()[0]
    told = {row[0]: row[1] for row in table("header field")}
    assert told["mode, uid, gid"] == f"{member.mode:04o}, {member.uid}, {member.gid}"
    assert told["mtime"] == str(member.mtime)


def test_the_tests_it_points_to_exist():
    assert [path for path in re.findall(r"`(tests/\S+)`", TEXT) if not (ROOT / path).is_file()] == []
