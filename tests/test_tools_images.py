"""tools/images.py: images out of folders and zips, and never from anywhere else."""

import os
import subprocess
import sys
import zipfile

import pytest

from images import MAX_IMAGE_BYTES, FolderSource, ZipSource, open_source
from pack_errors import ImagesError, UnreadableImageError

ODD_NAMES = [
    "a b.jpg",
    "ä日本.jpg",
    "new\nline.jpg",
    "-rf",
    "%2e%2e.jpg",
    "back\\slash.jpg",
    "*.jpg",
    "..jpg",
    "...",
    "~",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    top = tmp_path / "images"
    (top / "sub").mkdir(parents=True)
    (top / "one.jpg").write_bytes(b"one")
    (top / "sub" / "two.jpg").write_bytes(b"two")
    return top


def zipped(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def read(source, name):
    place = source.find(name)
    assert place is not None
    return bytes(source.read(place))


@pytest.fixture(params=["folder", "zip"])
def source(request, folder, tmp_path):
    """The same files as a folder and as a zip."""
    if request.param == "folder":
        return open_source(str(folder))
    path = zipped(tmp_path / "i.zip", {"one.jpg": b"one", "sub/": b"", "sub/two.jpg": b"two"})
    return open_source(str(path))


@pytest.mark.parametrize(("name", "data"), [("one.jpg", b"one"), ("sub/two.jpg", b"two"), ("two.jpg", b"two")])
def test_an_image_is_found_by_its_name_with_or_without_its_folder(source, name, data):
    assert read(source, name) == data


@pytest.mark.parametrize(
    "name",
    ["../secret.jpg", "/etc/passwd", "sub/../one.jpg", "./one.jpg", "sub", "sub/", "", ".", "..", "ONE.jpg", "x\0y"],
)
def test_names_that_the_listing_does_not_hold_are_not_found(source, name):
    assert source.find(name) is None


def test_why_an_image_is_missing_is_told(source):
    assert source.why_missing("three.jpg") == "no such file among the 2 files there"
    assert "leads out of --images" in source.why_missing("../secret.jpg")
    assert "absolute path" in source.why_missing("/etc/passwd")


def test_a_last_part_that_two_folders_hold_is_not_guessed(tmp_path):
    source = ZipSource(str(zipped(tmp_path / "i.zip", {"a/x.jpg": b"a", "b/x.jpg": b"b"})))
    assert source.find("x.jpg") is None
    assert "several folders" in source.why_missing("x.jpg")
    assert read(source, "b/x.jpg") == b"b"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_read_as_they_are(tmp_path, name):
    (tmp_path / name).write_bytes(b"odd")
    assert read(FolderSource(str(tmp_path)), name) == b"odd"


def test_links_to_files_and_folders_are_followed(folder, tmp_path):
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "linked").symlink_to(folder / "sub")
    source = FolderSource(str(folder))
    assert read(source, "link.jpg") == b"secret"
    assert read(source, "linked/two.jpg") == b"two"


def test_links_that_lead_in_circles_or_nowhere_are_no_images(folder):
    (folder / "circle.jpg").symlink_to(folder / "circle.jpg")
    (folder / "nowhere.jpg").symlink_to(folder / "nothing")
    (folder / "sub" / "up").symlink_to(folder)
    source = FolderSource(str(folder))
    assert source.find("circle.jpg") is None
    assert source.find("nowhere.jpg") is None
    assert source.find("sub/up/one.jpg") is None


def test_a_pipe_is_no_image_and_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe.jpg")
    assert FolderSource(str(folder)).find("pipe.jpg") is None


def test_small_and_large_files_are_read_in_turn(tmp_path):
    contents = [b"", b"x", os.urandom(3 * 2**20), b"yy", os.urandom(2**20), os.urandom(2**20 - 1)]
    for number, data in enumerate(contents):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    source = FolderSource(str(tmp_path))
    assert [read(source, f"{number}.jpg") for number in range(len(contents))] == contents


def test_a_file_that_vanished_is_an_error_that_names_it(folder):
    source = FolderSource(str(folder))
    place = source.find("one.jpg")
    (folder / "one.jpg").unlink()
    with pytest.raises(UnreadableImageError, match=r"one\.jpg: it cannot be opened \(No such file"):
        source.read(place)


def test_a_file_of_absurd_length_is_refused_before_memory_is_taken(folder):
    with (folder / "huge.jpg").open("wb") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    source = FolderSource(str(folder))
    with pytest.raises(UnreadableImageError, match="more than"):
        source.read(source.find("huge.jpg"))


def test_what_is_neither_folder_nor_zip_is_refused(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"x" * 1000)
    with pytest.raises(ImagesError, match="neither a folder nor a zip"):
        open_source(str(tmp_path / "x.tar"))
    with pytest.raises(ImagesError, match="does not exist"):
        open_source(str(tmp_path / "nothing"))


def test_a_place_that_one_process_found_is_read_by_another_that_knows_the_path(source):
    place = source.find("two.jpg")
    program = f"from images import *; print(bytes(open_source({source.path!r}).read({place!r})))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=60)
    assert done.stdout == b"b'two'\n"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read_stored_and_deflated(tmp_path, method):
    data = bytes(range(256)) * 100
    source = ZipSource(str(zipped(tmp_path / "i.zip", {"train2017/1.jpg": data, "train2017/0.jpg": b""}, method)))
    assert read(source, "1.jpg") == data
    assert read(source, "0.jpg") == b""


def test_zip64_headers_are_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "i.zip", "w") as archive:
        for name in ("1.jpg", "2.jpg"):
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(name.encode())
    assert read(ZipSource(str(tmp_path / "i.zip")), "2.jpg") == b"2.jpg"


def test_a_zip_behind_other_bytes_is_read(tmp_path):
    data = zipped(tmp_path / "i.zip", {"1.jpg": b"one"}).read_bytes()
    (tmp_path / "i.zip").write_bytes(b"#!/bin/sh\n" * 10 + data)
    assert read(ZipSource(str(tmp_path / "i.zip")), "1.jpg") == b"one"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_byte_of_a_member_is_a_bad_image(tmp_path, method):
    path = zipped(tmp_path / "i.zip", {"1.jpg": os.urandom(1000), "2.jpg": b"fine"}, method)
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    source = ZipSource(str(path))
    with pytest.raises(UnreadableImageError, match=r"1\.jpg"):
        source.read(source.find("1.jpg"))
    assert read(source, "2.jpg") == b"fine"


def test_a_member_whose_header_is_gone_is_a_bad_image(tmp_path):
    path = zipped(tmp_path / "i.zip", {"1.jpg": b"one"})
    path.write_bytes(b"\0\0\0\0" + path.read_bytes()[4:])
    source = ZipSource(str(path))
    with pytest.raises(UnreadableImageError, match="no member at byte 0"):
        source.read(source.find("1.jpg"))


def test_a_member_that_unpacks_to_more_than_it_says_is_cut_off(tmp_path):
    path = zipped(tmp_path / "i.zip", {"1.jpg": bytes(10**6)}, zipfile.ZIP_DEFLATED)
    source = ZipSource(str(path))
    place = source.find("1.jpg")._replace(size=10)
    with pytest.raises(UnreadableImageError, match="its 11 bytes do not match"):
        source.read(place)


def test_a_member_of_absurd_length_is_refused_before_memory_is_taken(tmp_path):
    source = ZipSource(str(zipped(tmp_path / "i.zip", {"1.jpg": b"one"})))
    with pytest.raises(UnreadableImageError, match="more than"):
        source.read(source.find("1.jpg")._replace(size=MAX_IMAGE_BYTES + 1))


def test_other_compressions_are_bad_images_that_say_so(tmp_path):
    source = ZipSource(str(zipped(tmp_path / "i.zip", {"1.jpg": b"one"}, zipfile.ZIP_BZIP2)))
    with pytest.raises(UnreadableImageError, match="compressed by method 12"):
        source.read(source.find("1.jpg"))


def test_an_encrypted_member_is_a_bad_image_that_says_so(tmp_path):
    path = zipped(tmp_path / "i.zip", {"1.jpg": b"one"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # APPNOTE.TXT 4.3.12: general purpose bit flag of the directory entry
    path.write_bytes(data)
    source = ZipSource(str(path))
    with pytest.raises(UnreadableImageError, match="encrypted"):
        source.read(source.find("1.jpg"))


def test_a_zip_without_a_sound_directory_is_refused(tmp_path):
    path = zipped(tmp_path / "i.zip", {"1.jpg": b"one", "2.jpg": b"two"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02")] = 0
    path.write_bytes(data)
    with pytest.raises(ImagesError, match="directory cannot be read"):
        open_source(str(path)).find("1.jpg")
