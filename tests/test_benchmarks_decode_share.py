import msgspec
import pytest

import decode_share
from coco_cases import draw
from stream.errors import DecodeError


def test_the_shares_cover_the_folder(tmp_path, capsys):
    images, _ = draw(tmp_path, images=5)
    counts = []
    for number in range(2):
        decode_share.main([str(images), str(number), "2"])
        share = msgspec.json.decode(capsys.readouterr().out, type=decode_share.Share)
        assert share.begin_s < share.end_s
        counts.append(share.images)
    assert counts == [3, 2]


def test_the_images_are_truly_decoded(tmp_path):
    images, _ = draw(tmp_path, images=1)
    (path,) = images.iterdir()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DecodeError):
        decode_share.main([str(images), "0", "1"])
