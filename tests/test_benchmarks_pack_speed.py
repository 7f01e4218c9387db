import json
import shutil

import pytest

import pack_speed
from coco_cases import draw
from report import Spread

NAMES = [name for name, _, _ in pack_speed._LINES]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("drawn"), images=6)


def words(drawn, on, *more):
    images, captions = drawn
    return ["--images", str(images), "--captions", str(captions), "--on", str(on), "--repeats", "1", *more]


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar on this machine")
def test_every_program_is_measured_and_nothing_remains(drawn, tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    assert pack_speed.main(words(drawn, disk, "--copies", "2", "--json", str(tmp_path / "r.json"))) == 0
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["images"] == 12
    assert [line["name"] for line in told["lines"]] == NAMES
    assert all(line["whole_s"]["median"] > 0 for line in told["lines"])
    assert not list(disk.iterdir())
    assert sum(line.startswith("| ") for line in capsys.readouterr().out.splitlines()) == 1 + len(NAMES)


def test_ratios_are_of_speeds():
    line = pack_speed.Line(name="tar", beside=None, whole_s=Spread(1.0, 1.0, 1.0), own_s=Spread(0.9, 0.9, 0.9))
    packer = pack_speed.Line(name="packer", beside="tar", whole_s=Spread(2.0, 2.0, 2.0), own_s=Spread(1.0, 1.0, 1.0))
    packing = pack_speed.Packing(images=100, image_bytes=1000, repeats=1, lines=[line, packer])
    assert "| packer | 2.00 | 2.00-2.00 | 50 | 0.50 | 1.00 | 100 | 0.90 |" in pack_speed.to_markdown(packing)


def test_a_program_that_fails_is_told_with_its_last_words(drawn, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pack_speed, "_PACKER", tmp_path / "nowhere.py")
    assert pack_speed.main(words(drawn, tmp_path, "--copies", "1")) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_a_disk_without_room_is_refused(drawn, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pack_speed, "_ROOM", 2**60)
    assert pack_speed.main(words(drawn, tmp_path)) == 2
    assert "are needed" in capsys.readouterr().err


def test_images_that_are_not_there_are_told(drawn, tmp_path, capsys):
    assert pack_speed.main(words((tmp_path / "none", drawn[1]), tmp_path)) == 2
    assert "FileNotFoundError" in capsys.readouterr().err


def test_a_wrong_number_ends_with_status_2(drawn, tmp_path):
    with pytest.raises(SystemExit) as left:
        pack_speed.main(words(drawn, tmp_path, "--copies", "0"))
    assert left.value.code == 2
