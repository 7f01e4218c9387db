"""benchmarks/ceiling.py: the ceiling counts images that were decoded, and Pillow does the same work beside it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pictures import encoded, picture
from stream.errors import DecodeError
from stream.resize import ResizeSpec, decode_into

PROGRAM = Path(__file__).resolve().parents[1] / "benchmarks" / "ceiling.py"
SPEC = ResizeSpec(24, 24)
IMAGES = [encoded(picture(40 + size, 60)) for size in range(3)]
PLAN = {"spec": SPEC, "threads": 2, "seconds": 0.02, "repeats": 3}


@pytest.fixture(scope="module")
def ceiling():
    spec = importlib.util.spec_from_file_location("ceiling", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ceiling"] = module  # a frozen dataclass looks its module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ceiling"]


@pytest.mark.parametrize("figure", ["decode_ceiling", "pillow_figure"])
def test_a_figure_is_the_median_of_its_windows(ceiling, figure):
    got = getattr(ceiling, figure)(IMAGES, **PLAN)
    assert 0 < got.lowest <= got.images_per_s <= got.highest
    assert (got.threads, got.seconds, got.repeats) == (2, 0.02, 3)


def test_each_window_takes_every_image_in_turn(ceiling, monkeypatch):
    seen = []
    monkeypatch.setattr(ceiling, "decode_into", lambda data, out, spec, *, name: seen.append(data))
    ceiling.decode_ceiling(IMAGES, **{**PLAN, "threads": 1, "repeats": 1})
    assert seen[: len(IMAGES)] == IMAGES


def test_each_thread_has_its_own_memory_of_the_targets_size(ceiling, monkeypatch):
    memory = {}
    monkeypatch.setattr(ceiling, "decode_into", lambda data, out, spec, *, name: memory.update({id(out): out}))
    ceiling.decode_ceiling(IMAGES, **{**PLAN, "repeats": 1})
    assert len(memory) >= 2
    assert {(out.shape, out.dtype) for out in memory.values()} == {((24, 24, 3), torch.uint8)}


def test_fewer_images_than_threads_are_enough(ceiling):
    assert ceiling.decode_ceiling(IMAGES[:1], **PLAN).images_per_s > 0


def test_an_image_that_cannot_be_decoded_ends_it(ceiling):
    with pytest.raises(DecodeError, match="empty file"):
        ceiling.decode_ceiling([b""], **PLAN)


def test_no_images_are_refused(ceiling):
    with pytest.raises(ValueError, match="no images"):
        ceiling.decode_ceiling([], **PLAN)


@pytest.mark.parametrize("mode", ["cover_crop", "contain_pad", "squash"])
@pytest.mark.parametrize("size", [(40, 60), (61, 43), (24, 24)])
def test_pillow_does_the_same_work(ceiling, size, mode):
    data = encoded(picture(*size), quality=95)
    spec = ResizeSpec(24, 24, mode)
    out = torch.zeros((24, 24, 3), dtype=torch.uint8)
    decode_into(data, out, spec, name="a")
    pixels = np.asarray(ceiling.by_pillow(data, spec))
    assert pixels.shape == (24, 24, 3)
    assert np.abs(pixels.astype(int) - out.numpy()).mean() <= 4  # its draft is of a smaller scale


def run(*arguments, cwd):
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_the_program_prints_a_row_for_each_decoder_and_number_of_threads(tmp_path):
    for number, data in enumerate(IMAGES):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    done = run(*("--data", str(tmp_path), "--image-size", "24", "--threads", "1,2", "--seconds", "0.02"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 images of ")
    rows = [line.rsplit(maxsplit=4) for line in done.stdout.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [
        ("ceiling (simplejpeg)", "1"),
        ("Pillow", "1"),
        ("ceiling (simplejpeg)", "2"),
        ("Pillow", "2"),
    ]
    assert all(int(number) > 0 for row in rows for number in row[2:])


def test_the_program_refuses_a_folder_without_jpegs(tmp_path):
    done = run("--data", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "no .jpg or .jpeg file in this folder" in done.stderr
