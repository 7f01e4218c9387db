"""What the reader offers, step by step: every row once, in order, over all portions; each portion filled when told."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from packed import key_of, make_packed
from shards.dataset import DatasetReader
from stream.cuts import NO_ROWS
from stream.errors import SourceError
from stream.offers import BatchOffer, StepOffer, batch_offers, packed_offers
from stream.options import BatchSpec
from stream.order import Order
from stream.packed import PackedSource
from stream.point import Bookmark
from stream.rows import open_rows
from stream.schedule import Schedule, slots
from stream.wire import unpack

SAMPLES = 46


class Step(NamedTuple):
    """As stream.portions has it."""

    portions: list[Any]
    real_rows: int
    last: list[bool]
    position_after: int
    where: str
    bookmark: Bookmark | None = None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


class Epoch(NamedTuple):
    source: PackedSource
    order: Order
    schedule: Schedule
    portions: int

    def offers(self, **options) -> list[StepOffer]:
        return list(packed_offers(self.source, self.order, self.schedule, portions=self.portions, epoch=3, **options))


def epoch_of(made, *, portions=2, global_batch=12, captions="random", **options) -> Epoch:
    source = PackedSource(DatasetReader(made.url), spec=BatchSpec(batch_size=12, captions=captions))
    order = Order(source.shard_rows(), shuffle="window", seed=1, epoch=3, window_shards=2)
    schedule = Schedule(len(order), **{"global_batch": global_batch, "ranks": portions, "drop_last": False, **options})
    return Epoch(source, order, schedule, portions)


def received(offer) -> Any:
    """What a rank makes of a portion."""
    memory = np.zeros(offer.size, dtype=np.uint8)
    offer.fill(memory)
    if offer.kind == "rows":
        return open_rows(offer.header, memory, verify=True)
    return unpack(offer.header, memory)


# --- packed shards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("portions", [1, 2, 3, 4])
@pytest.mark.parametrize("captions", ["random", "each"])
@pytest.mark.parametrize("tail", [{}, {"drop_last": True}, {"even_batches": False}], ids=str)
def test_each_portion_holds_the_rows_that_the_schedule_gives_it(made, portions, captions, tail):
    epoch = epoch_of(made, portions=portions, captions=captions, **tail)
    offers = epoch.offers()
    assert len(offers) == epoch.schedule.steps >= 3
    for step, offer in enumerate(offers):
        assert len(offer.portions) == portions
        for portion, found in enumerate(offer.portions):
            wanted = slots(epoch.order, epoch.schedule.portion(step, portion))
            assert ([] if found is None else received(found)) == epoch.source.rows(wanted, epoch=3)


def test_any_number_of_portions_makes_the_same_steps(made):
    steps = [
        [[row for portion in step.portions for row in received(portion)] for step in epoch_of(made, **cut).offers()]
        for cut in ({"portions": 1, "drop_last": True}, {"portions": 4, "drop_last": True})
    ]
    assert steps[0] == steps[1]


def test_positions_count_rows_without_padding(made):
    offers = epoch_of(made, portions=4).offers()
    assert [(offer.real_rows, offer.position_after) for offer in offers] == [(12, 12), (12, 24), (12, 36), (10, 46)]
    assert [len(received(portion)) for portion in offers[-1].portions] == [3, 3, 3, 3]


def test_the_last_step_is_marked_for_every_portion(made):
    assert [offer.last for offer in epoch_of(made).offers()] == [[False, False]] * 3 + [[True, True]]


def test_a_portion_without_rows_ends_one_step_earlier(made):
    offers = epoch_of(made, portions=3, global_batch=15, even_batches=False).offers()
    assert [offer.last for offer in offers[-2:]] == [[False, True, True], [True, True, True]]
    assert [portion is None for portion in offers[-1].portions] == [False, True, True]


def test_no_step_no_offer(made):
    assert epoch_of(made, global_batch=48, drop_last=True).offers() == []


@pytest.mark.parametrize("first_step", [0, 1, 3, 7, 8, 9, 15])
def test_an_epoch_may_be_taken_up_at_any_step(made, first_step):
    epoch = epoch_of(made, global_batch=3, portions=1)
    whole, rest = epoch.offers(), epoch.offers(first_step=first_step)
    assert len(whole) == 16
    assert [offer.position_after for offer in rest] == [offer.position_after for offer in whole[first_step:]]
    assert [received(offer.portions[0]) for offer in rest] == [
        received(offer.portions[0]) for offer in whole[first_step:]
    ]


def test_the_rest_of_an_epoch_keeps_its_positions(made):
    offers = epoch_of(made, start=20).offers()
    assert [offer.position_after for offer in offers] == [32, 44, 46]


def test_a_step_says_what_is_read_for_it(made):
    epoch = epoch_of(made)
    for offer in epoch.offers():
        first = received(offer.portions[0])[0]
        assert offer.where == first.name.removesuffix(".jpg")


def test_offering_reads_no_shard(tmp_path):
    made = make_packed(tmp_path / "own", 12)
    epoch = epoch_of(made)
    for shard_no, path in enumerate(made.tars()):
        epoch.source.reader.index(shard_no)
        Path(path).unlink()
    [offer] = epoch.offers()
    assert [portion.slow for portion in offer.portions] == [True, True]
    with pytest.raises(FileNotFoundError, match="made-"):
        received(offer.portions[0])


def test_a_portion_may_be_filled_for_several_ranks(made):
    portion = epoch_of(made).offers()[0].portions[0]
    assert received(portion) == received(portion)


# --- finished batches ------------------------------------------------------------------------------------------


def batch_of(number: int) -> dict[str, Any]:
    return {"image": torch.full((2, 3), number), "key": [key_of(number)] * 2}


def same(found, expected) -> bool:
    return found["key"] == expected["key"] and torch.equal(found["image"], expected["image"])


def test_batches_are_offered_portion_by_portion():
    steps = [
        Step([batch_of(0), batch_of(1)], 4, [False, True], 4, "a place", Bookmark(4, b"x")),
        Step([batch_of(2), NO_ROWS], 2, [True, True], 6, "another place"),
        Step([None], 1, [True], 7, "a batch that is None"),
    ]
    offers = list(batch_offers(steps))
    assert [offer[1:] for offer in offers] == [step[1:] for step in steps]
    assert offers[1].portions[1] is None
    assert offers[2].portions[0].local() is None
    for offer, step in zip(offers[:2], steps[:2], strict=True):
        for portion, batch in zip(offer.portions, step.portions, strict=True):
            assert portion is None or same(received(portion), batch)


def test_a_batch_of_the_readers_own_process_is_not_copied():
    batch = batch_of(5)
    [offer] = batch_offers([Step([batch], 2, [True], 2, "")])
    assert offer.portions[0].local()["image"].data_ptr() == batch["image"].data_ptr()
    assert not offer.portions[0].slow


def test_a_batch_that_is_a_slice_is_given_with_a_storage_of_its_own_in_the_memory_asked_for():
    whole = torch.arange(1000)
    offer = BatchOffer({"image": whole[10:20]})
    memory = torch.empty(10 * whole.element_size(), dtype=torch.uint8)
    found = offer.local(lambda _: memory)["image"]
    assert found.untyped_storage().nbytes() == 10 * whole.element_size()
    assert found.data_ptr() == memory.data_ptr()
    assert torch.equal(found, whole[10:20])
    assert torch.equal(received(offer)["image"], whole[10:20])


def test_a_batch_without_tensors_takes_no_memory():
    offer = BatchOffer(["a", None, 1])
    assert (offer.size, received(offer), offer.local()) == (0, ["a", None, 1], ["a", None, 1])


def test_what_cannot_be_carried_is_refused_where_it_is_offered():
    steps = [Step([batch_of(0)], 2, [False], 2, ""), Step([{"bad": [object()]}], 2, [True], 4, "")]
    offers = batch_offers(steps)
    next(offers)
    with pytest.raises(SourceError, match="bad"):
        next(offers)


@pytest.mark.parametrize("end", ["closed", "failed", "exhausted"])
def test_whoever_ends_the_offers_ends_their_source(end):
    ended = []

    def steps():
        try:
            yield Step([batch_of(0)], 2, [False], 2, "")
            if end == "failed":
                raise RuntimeError("the source failed")
        finally:
            ended.append(True)

    offers = batch_offers(steps())
    next(offers)
    assert not ended
    if end == "closed":
        offers.close()
    elif end == "failed":
        with pytest.raises(RuntimeError, match="the source failed"):
            next(offers)
    else:
        assert next(offers, None) is None
    assert ended
