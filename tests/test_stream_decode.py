"""stream/decode.py: the array, its orientation and scale, what is told of it, and what decoding leaves alone."""

import io
import random
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pictures import JPEG, by_pillow, difference, encoded, in_a_new_process, picture, rotated
from stream.decode import FORMATS, ImageInfo, check, decode, probe
from stream.errors import DecodeError

LIMIT = 2**20


# --- what decode returns


def test_the_result_is_a_new_writable_c_contiguous_uint8_array():
    pixels = decode(JPEG, name="a")
    assert (pixels.shape, pixels.dtype) == ((40, 60, 3), np.uint8)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF", "JPEG2000"])
def test_the_result_of_pillow_is_writable_and_c_contiguous_too(kind):
    pixels = decode(encoded(picture(), kind), name="a")
    assert (pixels.shape, pixels.dtype) == ((40, 60, 3), np.uint8)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(b"x" + data + b"x")[1:-1]])
def test_bytes_may_come_as_any_buffer(kind, wrap):
    data = encoded(picture(), kind)
    assert np.array_equal(decode(wrap(data), name="a"), decode(data, name="a"))
    assert check(wrap(data), name="a") == check(data, name="a") == probe(wrap(data), name="a")


def test_a_picture_larger_than_a_strip_is_whole():
    image = picture(1200, 700)
    assert np.array_equal(decode(encoded(image, "PNG"), name="a"), np.asarray(image))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_a_jpeg_is_decoded_as_by_pillow(options):
    data = encoded(picture(97, 131), **options)
    assert difference(decode(data, name="a"), by_pillow(data)) <= 0.01


def test_a_grey_jpeg_gives_three_equal_channels():
    pixels = decode(encoded(picture(mode="L")), name="a")
    assert np.array_equal(pixels[..., 0], pixels[..., 1])
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_an_rgb_jpeg_without_colour_transform_is_decoded_as_by_pillow():
    data = encoded(picture(), keep_rgb=True)
    assert simplejpeg.decode_jpeg_header(data)[2] == "RGB"
    assert difference(decode(data, name="a"), by_pillow(data)) <= 0.01


def test_a_cmyk_jpeg_is_decoded_as_by_pillow():
    data = encoded(picture(mode="CMYK"))
    assert simplejpeg.decode_jpeg_header(data)[2] in {"CMYK", "YCCK"}
    assert difference(decode(data, name="a"), by_pillow(data)) <= 0.01


# --- orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_is_applied_as_by_pillow(kind, orientation):
    data = rotated(kind, orientation, **({"lossless": True} if kind == "WEBP" else {}))
    pixels = decode(data, name="a")
    assert pixels.shape[0] == (60 if orientation > 4 else 40)
    assert difference(pixels, by_pillow(data)) <= 0.01
    for info in (probe(data, name="a"), check(data, name="a")):
        assert (info.oriented_height, info.oriented_width) == pixels.shape[:2]


def test_an_orientation_behind_the_pixels_of_a_png_is_applied():
    data = rotated("PNG", 6)
    at = data.index(b"eXIf") - 4
    end = at + 12 + struct.unpack_from(">I", data, at)[0]
    moved = data[:at] + data[end:-12] + data[at:end] + data[-12:]
    assert decode(moved, name="a").shape == (60, 40, 3)
    assert check(moved, name="a").orientation == 6


def test_an_exif_block_that_only_pillow_can_read_is_applied():
    data = rotated("JPEG", 6)
    doubled = data.replace(b"Exif\0\0", b"Exif\0\0Exif\0\0", 1)
    at = data.index(b"Exif") - 2
    size = struct.unpack_from(">H", data, at)[0]
    doubled = doubled[:at] + struct.pack(">H", size + 6) + doubled[at + 2 :]
    assert decode(doubled, name="a").shape == (60, 40, 3)


def test_exif_that_nobody_can_read_does_not_spoil_the_picture():
    text = PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n4\nno hexadecimal digits")
    data = encoded(picture(), "PNG", pnginfo=text)
    with pytest.raises(ValueError, match="hexadecimal"):
        Image.open(io.BytesIO(data)).getexif()
    assert decode(data, name="a").shape == (40, 60, 3)


# --- at_least


@pytest.mark.parametrize(
    ("at_least", "shape"),
    [
        ((1, 1), (50, 75)),
        ((50, 75), (50, 75)),
        ((51, 1), (100, 150)),
        ((1, 76), (100, 150)),
        ((100, 150), (100, 150)),
        ((101, 150), (200, 300)),
        ((200, 300), (200, 300)),
        ((201, 301), (400, 600)),
        ((9999, 9999), (400, 600)),
    ],
)
def test_at_least_takes_the_smallest_fast_scale_that_suffices(at_least, shape):
    data = encoded(picture(400, 600))
    assert decode(data, name="a", at_least=at_least).shape == (*shape, 3)


@pytest.mark.parametrize("at_least", [(h, w) for h in (1, 7, 8, 9, 17) for w in (1, 12, 13, 25, 37)])
def test_at_least_is_never_undercut(at_least):
    shape = decode(encoded(picture(33, 71)), name="a", at_least=at_least).shape
    assert shape[0] >= at_least[0]
    assert shape[1] >= at_least[1]


def test_at_least_means_the_upright_picture():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(400, 600), exif=exif)
    assert decode(data, name="a", at_least=(300, 200)).shape == (300, 200, 3)
    assert decode(data, name="a", at_least=(200, 300)).shape == (600, 400, 3)


def test_a_scaled_decode_shows_the_same_picture():
    image = picture(400, 600)
    half = decode(encoded(image, quality=95), name="a", at_least=(200, 300))
    assert difference(half, np.asarray(image.resize((300, 200), Image.Resampling.BOX))) <= 1


def test_other_formats_ignore_at_least():
    assert decode(encoded(picture(), "PNG"), name="a", at_least=(1, 1)).shape == (40, 60, 3)


# --- info


def test_info_tells_the_format_and_the_size_as_stored_and_as_oriented():
    data = rotated("JPEG", 6)
    expected = ImageInfo("jpeg", 60, 40, 6)
    assert (expected.oriented_width, expected.oriented_height) == (40, 60)
    assert probe(data, name="a") == check(data, name="a") == expected


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "JPEG"])
def test_info_names_the_format(kind):
    assert check(encoded(picture(), kind), name="a") == ImageInfo(kind.lower(), 60, 40)


def test_the_content_decides_not_the_name():
    assert check(encoded(picture(), "PNG"), name="one.jpg").format == "png"


def test_a_file_of_several_jpegs_is_a_jpeg():
    data = encoded(picture(), "MPO", save_all=True, append_images=[picture()])
    assert check(data, name="a").format == "jpeg"


def test_a_jpeg_that_only_pillow_reads_is_a_jpeg():
    at = JPEG.index(b"\xff\xdb")
    data = JPEG[:at] + b"\0\0\0" + JPEG[at:]  # bytes between segments: strict mode refuses them
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(data)
    assert check(data, name="a").format == "jpeg"
    assert difference(decode(data, name="a"), by_pillow(data)) <= 0.01


# --- check and decode


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_check_accepts_what_decode_accepts(kind):
    data = encoded(picture(), kind)
    for seed in range(150):
        chance = random.Random(seed)
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        assert outcome(check, damaged) == outcome(decode, damaged), f"seed {seed}"


def outcome(function, data):
    try:
        got = function(data, name="one", max_pixels=LIMIT)
    except DecodeError as error:
        return error.problem
    return got.shape[:2] if isinstance(got, np.ndarray) else (got.oriented_height, got.oriented_width)


# --- side effects


def test_no_warning_leaves():
    apng = encoded(picture(), "PNG")
    ihdr = apng.index(b"IDAT") - 4
    content = b"acTL" + bytes(8)  # no frames: Pillow warns
    chunk = struct.pack(">I", 8) + content + struct.pack(">I", zlib.crc32(content))
    data = apng[:ihdr] + chunk + apng[ihdr:]
    with pytest.warns(UserWarning, match="Invalid APNG"):
        Image.open(io.BytesIO(data))
    assert decode(data, name="a").shape == (40, 60, 3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(decode, data, name="a").result().shape == (40, 60, 3)


def test_pillows_settings_are_not_touched():
    before = Image.MAX_IMAGE_PIXELS
    decode(encoded(picture(), "PNG"), name="a", max_pixels=10**9)
    assert before == Image.MAX_IMAGE_PIXELS


def test_a_plain_jpeg_needs_neither_pillow_nor_torch(tmp_path):
    (tmp_path / "a.jpg").write_bytes(rotated("JPEG", 6))
    program = f"""
        import sys
        from stream.decode import decode
        decode(open({str(tmp_path / "a.jpg")!r}, "rb").read(), name="a")
        assert not {{"PIL", "torch", "accelerate"}} & set(sys.modules)
        """
    in_a_new_process(program)


def test_many_threads_give_what_one_gives():
    kinds = ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "AVIF"]
    cases = [encoded(picture(100 + 7 * step, 90), kind) for step in range(4) for kind in kinds] + [b"", JPEG[:300]]
    expected = [outcome(decode, data) for data in cases]
    pixels = [decode(data, name="a") for data in cases[:-2]]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert list(pool.map(lambda data: outcome(decode, data), cases)) == expected
            again = pool.map(lambda data: decode(data, name="a"), cases[:-2])
            assert all(np.array_equal(one, other) for one, other in zip(pixels, again, strict=True))


def test_the_first_use_may_come_from_many_threads_at_once(tmp_path):
    (tmp_path / "a.tif").write_bytes(encoded(picture(), "TIFF"))
    program = f"""
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        from stream.decode import decode
        data, start = open({str(tmp_path / "a.tif")!r}, "rb").read(), Barrier(8)
        def first(_):
            start.wait()
            return decode(data, name="a").shape
        with ThreadPoolExecutor(8) as pool:
            print(set(pool.map(first, range(8))))
        """
    assert in_a_new_process(program) == "{(40, 60, 3)}\n"


def test_decoding_in_a_thread_leaves_the_warnings_of_others_alone():
    stop, data = threading.Event(), encoded(picture(), "TIFF")

    def busy():
        while not stop.is_set():
            decode(data, name="a")

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(200):
            with pytest.raises(UserWarning, match="mine"):
                warnings.warn("mine", stacklevel=1)
    finally:
        stop.set()
        thread.join()
