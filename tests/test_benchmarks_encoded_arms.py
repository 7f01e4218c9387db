import numpy as np
import pytest

from benchmark_cases import make_images
from encoded_arms import TARGETS, Steps, bringer, copier, pieces, puller
from encoded_plan import Plan
from shards.dataset import DatasetReader


@pytest.fixture
def known(tmp_path):
    """A plan, its steps, and what a reader gives for each step."""
    data = make_images(tmp_path / "packed", 26)
    plan = Plan(data=data, ranks=2, rows=4, arms=["copy"], rounds=1, passes=1, warmup_steps=0)
    reader = DatasetReader(data)
    return plan, Steps(plan, reader), reader


def parts(reader, rows):
    return [
        b"".join(bytes(sample.parts[suffix]) for suffix in ("jpg", "txt"))
        for sample in reader.read(rows, suffixes=("jpg", "txt"))
    ]


def test_whole_steps_in_the_order_of_the_loader_are_brought(known):
    _, steps, _ = known
    rows = list(steps.rows())
    assert [len(step) for step in rows] == [4] * 6
    order = [row for step in rows for row in step]
    assert len(set(order)) == 24
    assert order != sorted(order)


@pytest.mark.parametrize("make", [copier, puller])
def test_one_process_brings_the_parts_of_every_sample(known, make):
    _, steps, reader = known
    alone = make(pieces(steps, reader), reader)
    for number, (size, rows) in enumerate(zip(alone.steps(), steps.rows(), strict=True)):
        expected, target, at = parts(reader, rows), alone._targets[number % TARGETS], 0
        assert size == sum(map(len, expected))
        for piece, part in zip(pieces(steps, reader)[number], expected, strict=True):
            held = bytes(target[at : at + piece.end - piece.start])
            assert held.startswith(part[:-20])
            assert held.endswith(part[-5:])
            at += piece.end - piece.start
    assert alone.received_bytes() == 0
    alone.close()


def test_files_are_closed(known):
    _, steps, reader = known
    alone = puller(pieces(steps, reader), reader)
    alone.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        next(alone.steps())


def test_one_process_has_nothing_to_do_on_other_ranks(known):
    plan, steps, _ = known
    assert bringer("preadv", plan, steps, rank=1) is None
    assert isinstance(bringer("copy", plan, steps, rank=0)._targets[0], np.ndarray)
