"""stream/decode.py on 604 awkward images of codec test suites: a picture or a DecodeError, no crash, no hang."""

import io
import multiprocessing
import resource
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image, ImageOps

from stream.decode import check, decode, probe
from stream.errors import DecodeError

pytestmark = pytest.mark.shared

HANG_S = 60


@dataclass
class Case:
    """What one file gave: the error, or the array as text; how far it is from Pillow's, where both read it."""

    name: str
    error: str = ""
    array: str = ""
    same_verdict: bool = True
    pillow_format: str = ""
    difference: float | None = None


def examine(path, name):
    """Runs in a process of its own, where warnings are errors; anything but a DecodeError is raised."""
    warnings.simplefilter("error")
    data = path.read_bytes()
    case = Case(name)
    pixels = attempt(decode, data, case)
    case.same_verdict = (attempt(check, data, Case(name)) is None) == (pixels is None)
    attempt(probe, data, Case(name))
    if pixels is not None:
        case.array = f"{pixels.dtype} {pixels.ndim} {pixels.shape[-1]} {pixels.flags.c_contiguous}"
    expected, case.pillow_format = by_pillow(data)
    if expected is not None and pixels is not None:
        assert pixels.shape == expected.shape, name
        case.difference = float(np.abs(pixels.astype(int) - expected).mean())
    return case


def attempt(function, data, case):
    try:
        return function(data, name=case.name)
    except DecodeError as error:
        case.error = str(error)
        return None


def by_pillow(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data))
            if image.format not in {"JPEG", "MPO"}:
                return None, ""
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB")), image.format
        except Exception:  # noqa: BLE001 - Pillow's refusal, whatever it is
            return None, ""


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture(scope="module")
def examined(shared_data):
    """All cases, and by how many MiB the peak memory of the process grew."""
    root = shared_data / "nasty"
    names = [line.split("\t")[0] for line in (root / "MANIFEST.tsv").read_text().splitlines()[1:]]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        before = pool.submit(peak_mib).result(timeout=HANG_S)
        cases = [pool.submit(examine, root / name, name).result(timeout=HANG_S) for name in names]
        return cases, pool.submit(peak_mib).result(timeout=HANG_S) - before


def test_every_file_gives_a_picture_or_an_error_that_names_it(examined):
    cases, _ = examined
    assert len(cases) == 604
    for case in cases:
        assert case.array == "uint8 3 3 True" or case.name in case.error, case


def test_most_files_give_a_picture(examined):
    cases, _ = examined
    assert sum(bool(case.array) for case in cases) >= 440


def test_check_and_decode_agree(examined):
    cases, _ = examined
    assert [case.name for case in cases if not case.same_verdict] == []


def test_all_of_them_take_less_than_1_gib(examined):
    _, grown = examined
    assert grown < 1024


def test_every_jpeg_that_pillow_loads_gives_pillows_picture(examined):
    cases, _ = examined
    loaded = [case for case in cases if case.pillow_format]
    assert len(loaded) >= 75
    assert [case for case in loaded if case.difference is None or case.difference > 2] == []


def test_real_images_give_pillows_picture(shared_data):
    paths = sorted((shared_data / "coco").rglob("*.jpg"))
    assert len(paths) == 280
    for path in paths[::4]:
        data = path.read_bytes()
        expected, _ = by_pillow(data)
        assert np.abs(decode(data, name=path.name).astype(int) - expected).mean() <= 2, path.name
