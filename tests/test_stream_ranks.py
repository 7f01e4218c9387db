"""Every sample reaches one rank, and steps are the same, for 1 to 4 real processes in both modes."""

import hashlib
from dataclasses import dataclass
from typing import Any

import pytest

from coco_cases import pack, succeeded
from conftest import SHARED_DATA
from packed import SIZE, make_packed, number_of
from ranks import run_ranks
from stream.loader import StreamLoader

pytestmark = pytest.mark.ranks

SAMPLES = 53  # 4 whole steps of 12 and 5 rows
STEP = 12
MODES, CAPTIONS, WORKERS = ("dispatch", "shard"), ("first", "each"), (0, 2)
every_case = pytest.mark.parametrize(
    "case", [f"{mode} {captions} {workers}" for mode in MODES for captions in CAPTIONS for workers in WORKERS]
)
both_modes = pytest.mark.parametrize("mode", MODES)


@dataclass(frozen=True)
class Job:
    """What the ranks of a job found: `found[rank][case]`."""

    ranks: int
    found: list[dict[str, Any]]

    def steps(self, case: str, epoch: int = 0) -> list[list[dict[str, Any]]]:
        """The portions of all ranks, step by step."""
        return list(zip(*(rank[case]["epochs"][epoch] for rank in self.found), strict=True))

    def rows(self, case: str, epoch: int = 0) -> list[list[tuple[str, str]]]:
        """The (key, caption) rows of each step over all ranks, padding included."""
        return [
            [pair for portion in portions for pair in zip(portion["key"], portion["caption"], strict=True)]
            for portions in self.steps(case, epoch)
        ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(scope="module")
def packed_coco(tmp_path_factory):
    """The folder of the packed real images, or None where they are absent."""
    if not SHARED_DATA.is_dir():
        return None
    coco, out = SHARED_DATA / "coco", tmp_path_factory.mktemp("coco") / "out"
    captions = coco / "annotations/captions_val2017_found.json"
    succeeded(pack(coco / "val2017", captions, out, "--shard-size", "5000000"))
    return str(out)


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def job(request, made, packed_coco, tmp_path_factory):
    cases = [*partitions(made), *forms(made)]
    if packed_coco is not None:
        cases += real(packed_coco)
    found = run_ranks("epochs.py", request.param, {"cases": cases}, tmp_path_factory.mktemp("job"))
    return Job(request.param, found)


def partitions(made):
    options = {"image_size": SIZE, "shuffle": "window", "seed": 3}
    for mode in MODES:
        for captions in CAPTIONS:
            for workers in WORKERS:
                yield {
                    "name": f"{mode} {captions} {workers}",
                    "mode": mode,
                    "url": made.url,
                    "options": {**options, "captions": captions},
                    "made": {"workers": workers},
                    "epochs": 2,
                }


def forms(made):
    for mode in MODES:
        base = {"mode": mode, "url": made.url, "epochs": 1}
        sized = {"image_size": SIZE, "shuffle": None}
        yield {**base, "name": f"{mode} whole images", "options": {"shuffle": None}}
        yield {**base, "name": f"{mode} all captions", "options": {**sized, "captions": "all"}}
        yield {**base, "name": f"{mode} dict", "options": sized, "collate": "dict"}
        yield {**base, "name": f"{mode} tuple", "options": sized, "collate": "tuple"}
        yield {**base, "name": f"{mode} dropped", "options": {**sized, "drop_last": True}}
        yield {**base, "name": f"{mode} each rank", "options": {**sized, "batch_size": 3}, **PER_RANK}
    uneven = {"accelerator": {"even_batches": False}, "gather": False}
    yield {**base, "name": "shard uneven", "options": sized, **uneven}


PER_RANK = {"accelerator": {"split_batches": False}}


def real(url):
    for mode in MODES:
        for captions, epochs in (("first", 2), ("each", 1)):
            yield {
                "name": f"coco {mode} {captions}",
                "mode": mode,
                "url": url,
                "options": {"image_size": 32, "captions": captions, "shuffle": "window"},
                "epochs": epochs,
                "look": False,
            }


@pytest.fixture(scope="module")
def expected(made):
    """What one process gets without an Accelerator: rows of each step, by captions and epoch."""
    found = {}
    for captions in CAPTIONS:
        loader = StreamLoader(made.url, batch_size=STEP, image_size=SIZE, captions=captions, seed=3)
        for epoch in range(2):
            found[captions, epoch] = [list(zip(batch["key"], batch["caption"], strict=True)) for batch in loader]
    return found


def digests_of(url, size):
    loader = StreamLoader(url, batch_size=STEP, image_size=size, shuffle=None)
    images = [image for batch in loader for image in batch["image"]]
    return {number_of(image): hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images}


# --- who gets what ---------------------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("epoch", [0, 1])
def test_every_row_reaches_one_rank_and_only_the_last_step_is_padded(job, made, case, epoch):
    rows = job.rows(case, epoch)
    wanted = (
        made.pairs if "each" in case else [(key, texts[0]) for key, texts in zip(made.keys, made.captions, strict=True)]
    )
    left = len(wanted) % STEP
    padding = -left % job.ranks
    assert [len(step) for step in rows] == [STEP] * (len(wanted) // STEP) + [left + padding]
    assert rows[-1][left:] == rows[0][:padding]
    assert sorted(row for step in [*rows[:-1], rows[-1][:left]] for row in step) == sorted(wanted)


@every_case
@pytest.mark.parametrize("epoch", [0, 1])
def test_steps_hold_the_same_rows_in_the_same_order_for_every_number_of_ranks(job, expected, case, epoch):
    whole = expected[case.split()[1], epoch]
    found = job.rows(case, epoch)
    assert [step[: len(known)] for step, known in zip(found, whole, strict=True)] == whole
    assert found[:-1] == whole[:-1]


@every_case
def test_portions_of_a_step_are_equal_in_size(job, case):
    for portions in job.steps(case):
        assert len({len(portion["key"]) for portion in portions}) == 1


@every_case
def test_another_epoch_is_another_order(job, case):
    assert job.rows(case, 0) != job.rows(case, 1)
    assert {rank[case]["epoch"] for rank in job.found} == {2}


@every_case
def test_the_length_is_the_number_of_steps(job, case):
    assert {rank[case]["length"] for rank in job.found} == {len(job.steps(case))}


@every_case
def test_nothing_is_left_behind(job, case):
    assert [rank[case]["left"] for rank in job.found] == [[]] * job.ranks


# --- what they get ---------------------------------------------------------------------------------------------


@every_case
def test_pixels_and_strides_are_those_of_one_process_on_every_rank(job, made, case):
    digests = digests_of(made.url, SIZE)
    for portions in job.steps(case):
        for portion in portions:
            assert portion["channels_last"]
            numbers = [int(key) for key in portion["key"]]
            shape = [3, *SIZE]
            assert portion["image"] == [[number, "torch.uint8", shape, digests[number]] for number in numbers]


@both_modes
def test_whole_images_are_a_list_on_every_rank(job, made, mode):
    digests = digests_of(made.url, None)
    for portions in job.steps(f"{mode} whole images"):
        for portion in portions:
            assert portion["list"]
            found = {number: digest for number, _, _, digest in portion["image"]}
            assert found == {int(key): digests[int(key)] for key in portion["key"]}


@both_modes
def test_all_captions_are_lists_on_every_rank(job, made, mode):
    for portions in job.steps(f"{mode} all captions"):
        for portion in portions:
            assert portion["caption"] == [made.captions[int(key)] for key in portion["key"]]


@both_modes
@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_a_users_collate_makes_the_portions(job, made, mode, form):
    for portions in job.steps(f"{mode} {form}"):
        for portion in portions:
            assert portion["form"] == form
            ids = portion["ids"] if form == "tuple" else [int(key) for key in portion["key"]]
            assert [number for number, *_ in portion["image"]] == ids
            texts = [made.captions[number][0] for number in ids]
            assert (
                texts == portion["caption"]
                if form == "tuple"
                else portion["more"]["words"] == list(map(str.split, texts))
            )


# --- the last step ---------------------------------------------------------------------------------------------


@every_case
def test_accelerate_hears_of_the_last_step_and_its_rows(job, expected, case):
    left = len(expected[case.split()[1], 0][-1])
    for rank in job.found:
        told = [(step["last"], step["remainder"]) for step in rank[case]["epochs"][0]]
        assert told == [(False, -1)] * (len(told) - 1) + [(True, left)]


@every_case
def test_gather_for_metrics_gives_every_row_once_on_every_rank(job, expected, case):
    whole = [[int(key) for key, _ in step] for step in expected[case.split()[1], 0]]
    for rank in job.found:
        for step, ids in zip(rank[case]["epochs"][0], whole, strict=True):
            assert step["gathered"] == [ids, ids]


@both_modes
def test_drop_last_leaves_out_less_than_one_step(job, made, mode):
    steps = job.steps(f"{mode} dropped")
    keys = [key for portions in steps for portion in portions for key in portion["key"]]
    assert keys == made.keys[:48]


@both_modes
def test_a_batch_size_of_each_rank_makes_larger_steps(job, made, mode):
    steps = job.steps(f"{mode} each rank")
    assert {len(portion["key"]) for portions in steps[:-1] for portion in portions} == {3}
    keys = [key for portions in steps for portion in portions for key in portion["key"]]
    assert keys == made.keys + made.keys[: -SAMPLES % job.ranks]


def test_uneven_portions_hold_every_row_once_without_padding(job, made):
    ranks = [rank["shard uneven"]["epochs"][0] for rank in job.found]
    sizes = [[len(step["key"]) for step in rank] for rank in ranks]
    tail = [5 // job.ranks + (rank < 5 % job.ranks) for rank in range(job.ranks)]
    assert sizes == [[STEP // job.ranks] * 4 + [rows] * (rows > 0) for rows in tail]
    assert sorted(key for rank in ranks for step in rank for key in step["key"]) == made.keys
    assert [[step["last"] for step in rank][-2:] for rank in ranks] == [[False, True]] * job.ranks


# --- real images -----------------------------------------------------------------------------------------------


@pytest.mark.shared
@both_modes
def test_each_real_image_reaches_one_rank(job, shared_data, mode):
    orders = []
    for epoch in (0, 1):
        keys = [key for step in job.rows(f"coco {mode} first", epoch) for key, _ in step]
        orders.append(keys[:200])
        assert len(set(orders[-1])) == 200
        assert keys[200:] == keys[: -200 % STEP % job.ranks]
    assert orders[0] != orders[1]


@pytest.mark.shared
@both_modes
def test_each_of_1001_real_captions_reaches_one_rank(job, shared_data, packed_coco, mode):
    rows = [row for step in job.rows(f"coco {mode} each") for row in step]
    assert rows[1001:] == rows[: -(1001 % STEP) % job.ranks]
    loader = StreamLoader(packed_coco, batch_size=64, image_size=8, captions="all", shuffle=None)
    pairs = [
        (key, text)
        for batch in loader
        for key, texts in zip(batch["key"], batch["caption"], strict=True)
        for text in texts
    ]
    assert len(pairs) == 1001
    assert sorted(rows[:1001]) == sorted(pairs)
