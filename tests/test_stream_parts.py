"""Portions out of several workers' parts."""

from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from packed import jpeg_of
from ranks import left_behind
from stream.collate import Item
from stream.cuts import Cut
from stream.parts import Collated, Part, Rest, assemble
from stream.sharded import Failed
from stream.workers import Crew, Hands

CUTS = st.builds(
    lambda portions, share, drop_last, even: Cut(portions * share, portions, drop_last, even),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)


def told_by(lengths, cut):
    """What workers with parts of these lengths give, in turn, and the rows of them all."""
    size, rows = cut.global_batch // cut.portions, iter(range(1000))
    parts = [[next(rows) for _ in range(length)] for length in lengths]
    waiting = {
        worker: [part[start : start + size] for start in range(0, len(part), size)] for worker, part in enumerate(parts)
    }
    begun = set()
    for worker in cycle(range(len(parts))):
        if not waiting:
            return
        if worker not in waiting:
            continue
        found = waiting[worker].pop(0) if waiting[worker] else []
        if len(found) == size:
            yield Collated(found, [] if worker in begun else found[: cut.portions])
            begun.add(worker)
        else:
            yield Rest(found)
            del waiting[worker]


def batches(step):
    return [
        None if not portion else portion[0].batch if isinstance(portion[0], Collated) else portion
        for portion in step.portions
    ]


@settings(deadline=None, max_examples=500)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5), cut=CUTS)
def test_every_row_comes_once_however_unevenly_workers_end(lengths, cut):
    rows, size = sum(lengths), cut.global_batch // cut.portions
    steps = list(assemble(told_by(lengths, cut), cut))
    made = [batches(step) for step in steps]
    flat = [row for step in made for portion in step if portion for row in portion]
    real = sum(step.real for step in steps)
    assert len(steps) == (rows // cut.global_batch if cut.drop_last else -(-rows // cut.global_batch))
    assert real == (len(steps) * cut.global_batch if cut.drop_last else rows)
    assert len(set(flat[:real])) == real
    assert set(flat[:real]) <= set(range(rows))
    assert [step.position_after for step in steps] == [
        sum(done.real for done in steps[: number + 1]) for number in range(len(steps))
    ]
    for step in made[:-1]:
        assert [len(portion) for portion in step] == [size] * cut.portions
    for number, step in enumerate(steps):
        assert step.last == [not any(later[p] for later in made[number + 1 :]) for p in range(cut.portions)]
    if steps and cut.even_batches:
        assert len({len(portion) for portion in made[-1]}) == 1
        assert set(flat[real:]) <= set(flat[: cut.portions])
    if not cut.even_batches or cut.drop_last:
        assert len(flat) == real


def test_a_last_step_that_came_as_rows_is_cut_as_that_of_any_source():
    [step] = assemble(told_by([2, 3], Cut(8, 2)), Cut(8, 2))
    assert step.portions == [[0, 1, 2], [3, 4, 0]]
    assert step.real == 5


def test_a_portion_that_was_collated_is_never_cut():
    [step] = assemble(told_by([5], Cut(8, 2)), Cut(8, 2))
    assert batches(step) == [[0, 1, 2, 3], [4, 0, 1, 0]]
    assert step.real == 5


def test_it_is_enough_to_know_of_one_more_portion():
    def told():
        yield from (Collated(number, [number]) for number in range(3))
        raise AssertionError("was read")

    step = next(assemble(told(), Cut(2, 2)))
    assert step.last == [False, False]


class Numbers:
    def __init__(self, count):
        self.count, self.epoch = count, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def rows(self, epoch):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        assert self.epoch == epoch
        yield from ((epoch, row) for row in range(worker, self.count, workers))


def part_of(count, cut, collate=list):
    dataset = Numbers(count)
    return Part(dataset, dataset.rows, collate, cut)


def test_workers_that_live_on_hear_of_each_epoch():
    part = part_of(7, Cut(4, 2))
    crew = Crew(part, Hands(workers=2, persistent=True))
    for epoch in (3, 4, 9):
        part.tell(epoch, skip=0)
        steps = [batches(step) for step in assemble(crew.run(), Cut(4, 2))]
        assert sorted({row for step in steps for portion in step for row in portion}) == [(epoch, n) for n in range(7)]
    crew.close()
    assert left_behind() == []


def test_portions_that_are_passed_over_are_not_collated():
    part = part_of(9, Cut(4, 2))
    part.tell(0, skip=2)
    found = list(Crew(part, Hands(workers=2)).run())
    assert [one.batch for one in found if isinstance(one, Collated)] == [None, None, [(0, 4), (0, 6)], [(0, 5), (0, 7)]]
    assert [one.rows for one in found if isinstance(one, Rest)] == [[(0, 8)], []]


def test_an_error_of_a_part_comes_behind_its_whole_portions():
    def failing(epoch):
        yield from range(5)
        raise OSError("the connection was reset")

    *good, failed = Part(None, failing, list, Cut(4, 2))
    assert [one.batch for one in good] == [[0, 1], [2, 3]]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, OSError)


def test_encoded_rows_of_a_rest_leave_their_worker():
    def rows(epoch):
        yield Item("key", memoryview(jpeg_of(1)), "a.tar: key.jpg", "text", 0)

    steps = list(assemble(Crew(Part(None, rows, list, Cut(4, 2)), Hands(workers=1)).run(), Cut(4, 2)))
    assert [bytes(row.image) for row in steps[0].portions[1]] == [jpeg_of(1)]
    assert isinstance(steps[0].portions[0][0].image, memoryview)


@pytest.mark.parametrize("cut", [Cut(4, 2), Cut(4, 2, drop_last=True), Cut(4, 2, even_batches=False)])
def test_an_epoch_of_nothing_has_no_steps(cut):
    assert list(assemble(iter([Rest([]), Rest([])]), cut)) == []
