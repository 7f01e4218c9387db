"""Prepared loaders that are ours, in 1, 2 and 4 processes, with all that accelerate does with them."""

from itertools import chain

import pytest

from ranks import run_ranks

pytestmark = pytest.mark.ranks

CASES = (
    "stateful_cases",
    "other_sizes",
    "saved",
    "refusals",
    "sliced",
    "no_loaders",
    "given_batches",
    "lengths",
    "skipped",
    "lives",
    "failing",
    "training",
    "uninstalled",
)


def together(ranks):
    """The rows of all ranks at each step; a rank that ended earlier has none."""
    longest = max(map(len, ranks))
    return [[row for rank in ranks for row in (rank[step] if step < len(rank) else [])] for step in range(longest)]


def flat(steps):
    return list(chain.from_iterable(steps))


@pytest.fixture(scope="module", params=[1, 2, 4])
def found(request, tmp_path_factory):
    return run_ranks("installed.py", request.param, {"cases": CASES}, tmp_path_factory.mktemp("installed"))


def test_a_loader_goes_on_behind_the_step_in_hand_on_every_rank(found):
    for name in found[0]["stateful_cases"]:
        cases = [rank["stateful_cases"][name] for rank in found]
        rest, resumed = (together([case[part] for case in cases]) for part in ("rest", "resumed"))
        assert [len(step) for step in resumed] == [len(step) for step in rest]
        real = 42 - cases[0]["position"][2]
        assert flat(resumed)[:real] == flat(rest)[:real] != [], name
        assert all(case["same"] for case in cases), name


def test_rows_by_number_are_padded_as_without_the_stop(found):
    for rank in found:
        for name, case in rank["stateful_cases"].items():
            if name.startswith(("rows by number", "a generator", "seedable")):
                assert case["resumed"] == case["rest"], name


def test_every_row_comes_once_around_a_resumption(found):
    for name, case in found[0]["stateful_cases"].items():
        steps = together([rank["stateful_cases"][name]["rows"] for rank in found])
        rows = [row for step in steps for row in step][:42]
        assert sorted(rows) == list(range(42)), name
        assert case["position"] == [0, 2, len(steps[0]) * 2], name


def test_rows_by_number_that_were_handed_out_are_not_read_again(found):
    for name in ("rows by number, split=True", "a source with a state, split=True"):
        case = found[0]["stateful_cases"][name]
        came = together([rank["stateful_cases"][name]["resumed"] for rank in found])
        assert set(case["read"]) == set(flat(came)), name


def test_the_state_at_the_end_of_an_epoch_is_the_begin_of_the_next(found):
    for rank in found:
        for name, case in rank["stateful_cases"].items():
            assert case["finished"], name
            assert case["iteration"] == 2, name
            if not name.startswith("rows by number"):  # whose order is drawn from the global generator
                assert case["after"] == case["second"] != [], name


def test_a_state_fits_loaders_whose_steps_begin_there_and_is_refused_by_others(found):
    told = [rank["other_sizes"] for rank in found]
    step = told[0]["step"]
    assert flat(together([one["fits"] for one in told])) == list(range(2 * step, 48))
    wanted = f"position={2 * step}: lies within a step, since a step has {step * 3 // 4} rows now"
    assert all(one["refused"].startswith(wanted) for one in told)


def test_the_state_counts_the_step_in_hand_and_is_equal_on_all_ranks(found):
    step = 4 * len(found)
    wanted = [0, *range(step, 40, step), 40]
    assert all(rank["saved"] == wanted for rank in found)


def test_what_cannot_be_told_or_done_is_refused_in_words(found):
    told = found[0]["refusals"]
    assert "use_stateful_dataloader=True" in told["no state"]
    assert told["another state"].startswith("OptionError: state=['_num_yielded']")
    assert told["size"].startswith("TypeError: the batches of this loader are made by its dataset")
    assert told["length"].startswith("TypeError")
    if len(found) > 1:
        assert f"a batch of 1 rows cannot be split over {len(found)} ranks" in told["odd split"]


def test_a_slicing_of_the_users_own_is_called_with_the_whole_step(found):
    count = len(found)
    for name in found[0]["sliced"]:
        for number, rank in enumerate(found):
            for step in rank["sliced"][name][:-1]:
                rows = [row - 1000 * number for row in step]
                assert rows[0] == max(rows), name
        whole = together([rank["sliced"][name] for rank in found])
        rows = {row % 1000 for step in whole for row in step}
        kept = 19 if "drop=False" in name else 16 if "split=True" in name else 19 - 19 % (4 * count)
        assert rows == set(range(kept)), name


def test_a_dataset_that_makes_batches_is_dispatched_without_a_data_loader_around_it(found):
    batches = [list(range(4 * batch, 4 * batch + 4)) for batch in range(6)]
    for asked in ("None", "True"):
        came = [batch for step in range(-(-6 // len(found))) for batch in batches_at(found, asked, step)]
        assert came[:6] == batches


def test_another_iterable_is_left_alone_with_a_warning_by_the_main_process(found):
    assert all(rank["no_loaders"]["same"] for rank in found)
    warned = [text for text in found[0]["no_loaders"]["heard"] if "Iterated is no torch DataLoader" in text]
    assert len(warned) == (len(found) > 1)
    assert not any(rank["no_loaders"]["heard"] for rank in found[1:])


def test_batches_of_the_dataset_are_sent_whole_or_split(found):
    told = [rank["given_batches"] for rank in found]
    assert sorted(flat(together([one["split"] for one in told]))) == list(range(24))
    assert sorted(set(flat(together([one["whole"] for one in told])))) == list(range(24))


def test_lists_of_row_numbers_are_cut_for_the_ranks(found):
    told = [rank["given_batches"] for rank in found]
    assert flat(together([one["lists"] for one in told]))[:10] == list(range(10))
    assert {len({len(step) for step in steps}) for steps in zip(*(one["lists"] for one in told), strict=True)} == {1}
    assert all(one["size"] == 4 * len(found) and one["length"] == len(one["lists"]) for one in told)


def test_the_length_is_the_number_of_steps(found):
    for rank in found:
        for name, (length, steps) in rank["lengths"].items():
            assert length == steps, name


def test_whole_steps_are_skipped_exactly_also_by_a_name_that_was_imported_before(found):
    step = 4 * len(found)
    for name in ("numbers", "series"):
        told = [rank["skipped"][name] for rank in found]
        assert flat(together([one["rows"] for one in told])) == list(range(2 * step, 40))
        assert all(one["same"] and all(one["kept"][1:]) and one["kept"][0] is False for one in told)
        assert all(one["iterations"] == [0, 2] for one in told)
    assert found[0]["skipped"]["numbers"]["read"] == list(range(2 * step, 40))
    assert all(rank["skipped"]["numbers"]["length"] == len(rank["skipped"]["numbers"]["rows"]) for rank in found)


def test_what_is_skipped_in_shard_mode_is_accelerates_own_affair(found):
    told = [rank["skipped"]["shard"] for rank in found]
    assert not any(one["ours"] for one in told)
    assert flat(together([one["rows"] for one in told]))[:8] == list(range(8 * len(found), 8 * len(found) + 8))


def test_loaders_are_left_closed_copied_and_freed_without_a_trace(found):
    for rank in found:
        assert rank["lives"] == {
            "first": True,
            "registered": False,
            "again": True,
            "copy": True,
            "left": [],
            "after_close": True,
            "freed": [None, [], []],
        }


def test_an_error_is_raised_on_every_rank_behind_the_good_steps(found):
    good = -(-18 // (4 * len(found))) - 1
    for rank in found:
        for name, text in (
            ("dataset", "row 18 is lost"),
            ("sampler", "no such row"),
            ("set_epoch", "no epochs here"),
        ):
            steps, said, iteration, registered = rank["failing"][name]
            assert len(steps) == (0 if name == "set_epoch" else good), name
            assert [said, iteration, registered] == [text, 0, False], name


def test_uneven_ranks_are_joined_and_a_batch_size_that_fits_is_found(found):
    assert [rank["training"]["joined"] for rank in found] == [2] + [1] * (len(found) - 1)
    for rank in found:
        assert not rank["training"]["ended"]
        assert rank["training"]["sizes"][0] == 8
        assert rank["training"]["sizes"][-1] == 2


def test_a_prepared_loader_works_on_after_accelerates_own_is_back(found):
    rows, is_in_place = zip(*(rank["uninstalled"] for rank in found), strict=True)
    assert flat(together(rows)) == list(range(16))
    assert not any(is_in_place)


def batches_at(found, asked, step):
    return [rank["no_loaders"][asked][step] for rank in found if step < len(rank["no_loaders"][asked])]
