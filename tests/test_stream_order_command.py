"""`python -m stream order`: its answers against the loader's own batches, and what it refuses."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packed import SIZE, captions_of, key_of, make_packed, parts_of
from shards.index import RowInfo
from shards.manifest import Manifest, ShardInfo
from shards.store import open_store
from shards.writer import ShardWriter
from stream import order_report
from stream.loader import StreamLoader
from stream.order import Order
from stream.order_command import main
from stream.order_report import Dealing, measure, memory_bytes
from stream.schedule import Schedule

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 29
UNSORTED = (5, 0, 17, 3, 11, 2, 28, 9, 1, 20, 7, 14)
RANKS = pytest.mark.parametrize("ranks", [1, 2, 3, 4])
ORDERS = pytest.mark.parametrize("shuffle", ["none", "window", "full"])
SPLIT = ("--batch-size", 12, "--split-batches")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_packed(tmp_path_factory.mktemp("packed"), SAMPLES)


@pytest.fixture(scope="module")
def unsorted(tmp_path_factory):
    """A dataset of three samples a shard whose keys do not rise."""
    folder = tmp_path_factory.mktemp("unsorted")
    with ShardWriter(open_store(str(folder)), "made", shard_bytes=12 * 2**10) as writer:
        for number in UNSORTED:
            writer.add(key_of(number), parts_of(number), RowInfo(64, 16, 1, (3,) * len(captions_of(number))))
        writer.close()
    return str(folder)


@pytest.fixture
def ask(asking):
    return asking(main)


def run(*arguments):
    """Ask in a process of its own."""
    command = [sys.executable, "-m", "stream", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def loader_of(url, **options):
    return StreamLoader(url, **{"batch_size": 12, "image_size": SIZE, **options})


def labels_of(batches, *, each):
    """What the command calls the rows of each batch: keys, with the number of the caption where those are rows."""

    def label(key, caption):
        return f"{key}/{captions_of(int(key)).index(caption)}" if each else key

    return [list(map(label, batch["key"], batch["caption"])) for batch in batches]


def expected(rows, step, ranks, labels, *, start=0):
    """The lines of a step: the loader's rows, dealt out by `Schedule`; `labels` are those of all positions."""
    schedule = Schedule(rows, global_batch=12, ranks=ranks, drop_last=False, start=start)
    left, lines = schedule.real_rows(step), []
    for rank in range(ranks):
        words = [f"rank {rank}:"]
        for position in schedule.portion(step, rank).tolist():
            words.append(labels[position] + "*" * (left <= 0))
            left -= 1
        lines.append(" ".join(words))
    return lines


def saved(folder, loader, name="stream_train.json"):
    path = folder / name
    path.write_text(json.dumps(loader.state_dict()) + "\n")
    return path


# --- steps -----------------------------------------------------------------------------------------------------


@RANKS
@ORDERS
@pytest.mark.parametrize("captions", ["first", "each"])
def test_a_step_is_what_the_loader_gives(made, ask, ranks, shuffle, captions):
    own = None if shuffle == "none" else shuffle
    loader = loader_of(made.url, shuffle=own, seed=3, captions=captions)
    loader.set_epoch(2)
    steps = labels_of(loader, each=captions == "each")
    labels = [label for step in steps for label in step]
    chosen = ("--shuffle", shuffle, "--seed", 3, "--epoch", 2, "--captions", captions)
    for step in range(len(steps)):
        status, lines, _ = ask(made.url, "--step", step, "--ranks", ranks, *SPLIT, *chosen)
        assert (status, lines) == (0, expected(len(labels), step, ranks, labels))


def test_padding_is_marked_and_explained(made, ask):
    _, lines, told = ask(made.url, "--step", 2, "--ranks", 4, *SPLIT, "--shuffle", "none")
    assert lines[2:] == [f"rank 2: {key_of(28)} {key_of(0)}*", f"rank 3: {key_of(1)}* {key_of(2)}*"]
    assert told == "order: * marks padding: the epoch's first rows, which fill up its last step\n"


def test_an_uneven_last_step_has_no_padding(made, ask):
    asked = (made.url, "--step", 2, "--ranks", 4, *SPLIT, "--shuffle", "none", "--uneven-batches")
    keys = [key_of(number) for number in range(24, 29)]
    assert ask(*asked) == (0, [f"rank 0: {keys[0]} {keys[1]}", *(f"rank {r}: {keys[r + 1]}" for r in (1, 2, 3))], "")


def test_a_batch_of_each_rank_is_a_step_of_all(made, ask):
    whole = ask(made.url, "--step", 1, "--ranks", 3, *SPLIT)
    assert ask(made.url, "--step", 1, "--ranks", 3, "--batch-size", 4) == whole


def test_a_limit_is_that_of_the_loader(made, ask):
    keys = [key for batch in loader_of(made.url, limit=17) for key in batch["key"]]
    assert ask(made.url, "--step", 1, "--ranks", 1, *SPLIT, "--limit", 17)[1] == [f"rank 0: {' '.join(keys[12:])}"]


def listed(folder, *, shards, rows):
    """A folder with the manifest of a dataset that nobody packed."""
    infos = [
        ShardInfo(
            url=f"big-{number:06d}.tar",
            nsamples=rows,
            filesize=10**8,
            captions=5000,
            xxh3_128="0" * 32,
            index_url=f"big-{number:06d}.tar.index",
            index_filesize=10**5,
            index_xxh3_128="0" * 32,
        )
        for number in range(shards)
    ]
    (folder / "manifest.json").write_bytes(Manifest("big", infos).to_bytes())
    return folder


def test_row_numbers_need_no_index_and_no_shard(tmp_path, ask):
    listed(tmp_path, shards=1000, rows=1000)
    rows = Order([1000] * 1000, shuffle="window", seed=0, epoch=0, window_shards=4).rows(600_000, 600_004).tolist()
    status, lines, told = ask(tmp_path, "--step", 150_000, "--ranks", 2, "--batch-size", 2, "--rows")
    assert (status, lines) == (0, [f"rank 0: #{rows[0]} #{rows[1]}", f"rank 1: #{rows[2]} #{rows[3]}"])
    assert told.count("\n") == 1
    assert ask(tmp_path, "--row", rows[3], "--ranks", 2, "--batch-size", 2)[1] == [
        f"#{rows[3]}: epoch 0, position 600003, step 150000, rank 1"
    ]
    status, _, told = ask(tmp_path, "--step", 0, "--ranks", 2, "--batch-size", 2)
    assert status == 1
    assert "there is no file" in told
    assert "--rows" in told


# --- state -----------------------------------------------------------------------------------------------------


@RANKS
@ORDERS
def test_steps_are_counted_from_a_state(made, ask, tmp_path, ranks, shuffle):
    loader = loader_of(made.url, shuffle=None if shuffle == "none" else shuffle, seed=5)
    labels = [key for batch in loader for key in batch["key"]]
    loader.set_epoch(0)
    next(iter(loader))
    state = saved(tmp_path, loader)
    for step in (0, 1):
        _, lines, _ = ask(made.url, "--step", step, "--ranks", ranks, *SPLIT, "--state", state)
        assert lines == expected(SAMPLES, step, ranks, labels, start=12)
    loader.close()


def test_a_state_at_an_epochs_end_tells_of_the_next(made, ask, tmp_path):
    loader = loader_of(made.url)
    list(loader)
    state = saved(tmp_path, loader)
    keys = " ".join(next(iter(loader))["key"])
    loader.close()
    assert ask(made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", state)[1] == [f"rank 0: {keys}"]


@RANKS
def test_it_says_which_keys_were_seen_and_when_the_others_come(made, ask, tmp_path, ranks):
    loader = loader_of(made.url, seed=7)
    keys = [key for batch in loader for key in batch["key"]]
    loader.set_epoch(0)
    next(iter(loader))
    state = saved(tmp_path, loader)
    loader.close()
    asked = [word for key in keys for word in ("--key", key)]
    status, lines, _ = ask(made.url, *asked, "--ranks", ranks, *SPLIT, "--state", state)
    seen = [
        f"{key}: epoch 0, position {position}, step 0, rank {position // (12 // ranks)}: was seen"
        for position, key in enumerate(keys[:12])
    ]
    assert (status, [line for line in lines if line.endswith("was seen")]) == (0, seen)
    for key in keys[12:24]:
        place = keys.index(key)
        rank = (place - 12) // (12 // ranks)
        assert f"{key}: epoch 0, position {place}, step 0 from the state, rank {rank}: still to come" in lines
    padding = [line for line in lines if line.endswith("as padding: still to come")]
    assert len(padding) == -5 % ranks
    assert [line.split(":")[0] for line in padding] == keys[: -5 % ranks]


def test_a_state_between_two_steps_is_told_of(made, ask, tmp_path):
    loader = loader_of(made.url, batch_size=7)
    next(iter(loader))
    status, _, told = ask(made.url, "--row", 3, "--ranks", 1, *SPLIT, "--state", saved(tmp_path, loader))
    loader.close()
    assert status == 0
    assert "position 7 is no whole number of steps of 12 rows" in told


def test_the_state_of_other_data_is_refused(made, unsorted, ask, tmp_path):
    state = saved(tmp_path, loader_of(unsorted))
    status, lines, told = ask(made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", state)
    assert (status, lines) == (1, [])
    assert f"state {state} is of other data: digest " in told
    assert "give the manifest of the dataset" in told


def test_the_state_of_a_limited_loader_needs_its_limit(made, ask, tmp_path):
    loader = loader_of(made.url, limit=17)
    state, keys = saved(tmp_path, loader), next(iter(loader))["key"]
    loader.close()
    asked = (made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", state)
    assert ask(*asked, "--limit", 17)[1] == [f"rank 0: {' '.join(keys)}"]
    for other in ((), ("--limit", 16)):
        status, _, told = ask(*asked, *other)
        assert status == 1
        assert "is of other rows of these data" in told


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seed", 4, "--seed 4 contradicts seed 0 of state"),
        ("--epoch", 1, "--epoch 1 contradicts epoch 0 of state"),
        ("--shuffle", "none", "--shuffle none contradicts shuffle window of state"),
        ("--window-shards", 2, "--window-shards 2 contradicts window_shards 4 of state"),
        ("--captions", "each", "--captions each contradicts captions first of state"),
    ],
)
def test_an_option_that_contradicts_the_state_is_refused(made, ask, tmp_path, option, value, message):
    state = saved(tmp_path, loader_of(made.url))
    asked = (made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", state)
    status, lines, told = ask(*asked, option, value)
    assert (status, lines) == (2, [])
    assert f"{message} {state}" in told
    assert told.count("\n") == 1


def test_options_that_agree_with_the_state_are_taken(made, ask, tmp_path):
    state = saved(tmp_path, loader_of(made.url, shuffle=None))
    asked = (made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", state)
    assert ask(*asked, "--shuffle", "none", "--seed", 0, "--epoch", 0, "--window-shards", 4) == ask(*asked)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 2}', '{"version": 1, "digest": 5}'])
def test_what_is_no_state_is_refused(made, ask, tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    status, _, told = ask(made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", tmp_path / "state.json")
    assert status == 1
    assert "cannot be read" in told
    assert told.count("\n") == 1


# --- keys and rows ---------------------------------------------------------------------------------------------


@ORDERS
@pytest.mark.parametrize("captions", ["first", "each"])
def test_a_key_is_where_the_loader_gives_it(made, ask, shuffle, captions):
    each = captions == "each"
    loader = loader_of(made.url, shuffle=None if shuffle == "none" else shuffle, captions=captions)
    labels = [label for step in labels_of(loader, each=each) for label in step]
    chosen = ("--ranks", 1, *SPLIT, "--shuffle", shuffle, "--captions", captions)
    for key in made.keys[::4]:
        mine = sorted(label for label in labels if label.split("/")[0] == key)
        places = [(label, labels.index(label)) for label in mine]
        lines = [f"{label}: epoch 0, position {place}, step {place // 12}, rank 0" for label, place in places]
        assert ask(made.url, "--key", key, *chosen) == (0, lines, "")


def test_a_key_is_found_where_keys_do_not_rise(unsorted, ask):
    for place, number in enumerate(UNSORTED):
        status, lines, told = ask(unsorted, "--key", key_of(number), "--ranks", 1, *SPLIT, "--shuffle", "none")
        assert (status, lines) == (0, [f"{key_of(number)}: epoch 0, position {place}, step 0, rank 0"])
        assert told == "" or "reading the indexes of all" in told


def test_keys_that_do_not_rise_are_looked_for_in_one_pass(unsorted, ask):
    asked = [word for number in UNSORTED for word in ("--key", key_of(number))]
    status, lines, told = ask(unsorted, *asked, "--ranks", 1, *SPLIT, "--shuffle", "none")
    assert (status, [line.split(":")[0] for line in lines]) == (0, [key_of(number) for number in UNSORTED])
    assert told.count("reading the indexes of all") == 1


def test_the_tail_that_is_dropped_is_told_of(made, ask):
    asked = ("--ranks", 1, *SPLIT, "--shuffle", "none", "--drop-last")
    _, lines, _ = ask(made.url, "--row", 23, "--row", 24, *asked)
    left_out = "#24: epoch 0, position 24: left out by --drop-last, which ends the epoch with a whole step"
    assert lines == ["#23: epoch 0, position 23, step 1, rank 0", left_out]
    assert ask(made.url, "--key", key_of(28), "--limit", 17, *asked)[1] == [f"{key_of(28)}: left out by --limit 17"]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(0, 40))
def test_every_row_is_told_to_be_where_it_is_dealt_out(rows, share, ranks, drop_last, even, start):
    start = min(start, rows)
    dealing = Dealing(
        rows=rows, global_batch=share * ranks, ranks=ranks, drop_last=drop_last, even_batches=even, start=start
    )
    told = {(position, *sighting) for position in range(rows) for sighting in dealing.sightings(position)}
    dealt, schedule = set(), dealing.rest
    for step in range(schedule.steps):
        left = schedule.real_rows(step)
        for rank in range(ranks):
            for position in schedule.portion(step, rank).tolist():
                dealt.add((position, step, rank, left <= 0, False))
                left -= 1
    assert {one for one in told if not one[-1]} == dealt
    assert sorted(one[0] for one in told if one[-1]) == list(range(start))


# --- quality ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.sampled_from([None, "window", "full"]))
def test_quality_is_what_counting_says(shard_rows, shuffle):
    order = Order(shard_rows, shuffle=shuffle, seed=1, epoch=0, window_shards=2)
    rows = order.rows(0, len(order)).tolist()
    quality = measure(order)
    if len(rows) < 2:
        return
    away = sum(abs(position - row) for position, row in enumerate(rows)) / len(rows) ** 2
    kept = sum(after == row + 1 for row, after in pairwise(rows)) / (len(rows) - 1)
    assert quality == (pytest.approx(away), pytest.approx(kept))


def test_a_sample_of_positions_measures_nearly_the_same(monkeypatch):
    order = Order([100] * 300, shuffle="window", seed=0, epoch=0, window_shards=4)
    whole = measure(order)
    monkeypatch.setattr(order_report, "SAMPLED", 5000)
    np.testing.assert_allclose(measure(order), whole, atol=0.01)


def test_storage_order_keeps_all_and_a_full_shuffle_moves_a_third():
    assert measure(Order([1000], shuffle=None, seed=0, epoch=0, window_shards=1)) == (0, 1)
    full = measure(Order([30_000], shuffle="full", seed=0, epoch=0, window_shards=1))
    assert full == (pytest.approx(1 / 3, abs=0.01), pytest.approx(0, abs=0.001))


def test_two_windows_are_what_mixing_needs_but_never_more_than_all_shards():
    assert memory_bytes([10, 20, 30, 40, 50], 2) == 4 * 30
    assert memory_bytes([10, 20, 30], 2) == 60
    assert memory_bytes([], 2) == 0


def test_the_table_compares_all_shuffles(made, ask):
    status, lines, told = ask(made.url, "--quality", "--window-shards", "2,3")
    assert (status, told) == (0, "")
    assert [line.split(" | ")[:2] for line in lines[2:6]] == [
        ["| none", "-"],
        ["| window", "2"],
        ["| window", "3"],
        ["| full", "-"],
    ]
    assert lines[6:] == ["", "Measured at all 29 positions, seed 0, epoch 0."]


# --- as a program ----------------------------------------------------------------------------------------------


def test_it_answers_as_a_program_without_torch(made):
    code = "import sys; from stream.__main__ import main; s = main(sys.argv[1:]); sys.exit(s or 'torch' in sys.modules)"
    words = ["order", made.url, "--step", "0", "--ranks", "2", "--batch-size", "3", "--shuffle", "none"]
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    first = " ".join(key_of(number) for number in range(3))
    second = " ".join(key_of(number) for number in range(3, 6))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"rank 0: {first}\nrank 1: {second}\n", "")


def test_wrong_usage_exits_with_2(made):
    done = run("order", made.url, "--step", 0, "--ranks", 5, *SPLIT)
    problem = "a step of 12 rows cannot be split over 5 ranks; use a multiple of 5, e.g. 10 or 15"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"order: --batch-size 12: {problem}\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--ranks", 10**12, "--batch-size", 1, "--step", 0], "is too many; give 1048576 or fewer"),
        (["--ranks", 2**16, "--batch-size", 1, "--row", 0], ""),
        (["--ranks", 1, "--batch-size", 10**12, "--step", 0], ""),
    ],
)
def test_numbers_that_no_job_has_are_refused_before_memory_is_asked_for(made, ask, arguments, problem):
    status, lines, said = ask(made.url, *arguments)
    assert (status, bool(lines)) == ((2, False) if problem else (0, True))
    assert problem in said


def test_a_step_that_is_too_long_to_be_told_is_refused(tmp_path, ask):
    asked = (listed(tmp_path, shards=1, rows=10**9), "--ranks", 1, "--batch-size", 10**8, "--step", 0, "--rows")
    status, lines, said = ask(*asked)
    assert (status, lines) == (1, [])
    assert "a step of 100000000 rows is too long to be told; at most 10000000 rows are" in said


def test_what_has_no_answer_exits_with_1(made, tmp_path):
    done = run("order", tmp_path, "--quality")
    advice = "give a packed dataset's folder or its manifest"
    assert (done.returncode, done.stderr) == (1, f"order: there is no file {tmp_path}/manifest.json; {advice}\n")


@pytest.mark.parametrize("words", [(), ("ordr",)])
def test_no_command_exits_with_2(words):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: python -m stream {order}" in done.stderr


def test_a_reader_that_leaves_is_no_traceback(made):
    words = ["order", made.url, "--quality"]
    command = [sys.executable, "-m", "stream", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 1)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--step", 3, "--ranks", 1, *SPLIT), 1, "--step 3: epoch 0 has 3 steps of 12 rows"),
        (("--row", 29, "--ranks", 1, *SPLIT), 1, "--row 29: an epoch has 29 rows here"),
        (("--key", "nobody", "--ranks", 1, *SPLIT), 1, "--key nobody: no index of"),
        (("--key", "a.b", "--ranks", 1, *SPLIT), 2, "a key is made of"),
        (("--step", 0), 2, "give both"),
        (("--ranks", 1, *SPLIT), 2, "ask one thing"),
        (("--step", 0, "--quality"), 2, "ask one thing"),
        (("--quality", "--shuffle", "full"), 2, "leave --shuffle out"),
        (("--row", 0, "--rows", "--ranks", 1, *SPLIT), 2, "--rows is for --step"),
        (("--step", 0, "--window-shards", "2,4", "--ranks", 1, *SPLIT), 2, "several are for --quality"),
        (("--step", 0, "--window-shards", "0", "--ranks", 1, *SPLIT), 2, "give 1 or more"),
        (("--step", -1, "--ranks", 1, *SPLIT), 2, "--step"),
        (("--step", 0, "--seed", 2**63, "--ranks", 1, *SPLIT), 2, "from 0 to 2**63 - 1"),
    ],
)
def test_what_cannot_be_answered_is_refused(made, ask, words, status, message):
    got, lines, told = ask(made.url, *words)
    assert (got, lines) == (status, [])
    assert message in told


def test_an_index_that_the_manifest_does_not_list_is_refused(tmp_path, ask):
    url = make_packed(tmp_path, 6).url
    index = tmp_path / "made-000000.tar.index"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    status, _, told = ask(url, "--step", 0, "--ranks", 1, *SPLIT)
    assert status == 1
    assert "is not the index that the manifest lists" in told


def test_the_state_of_a_loader_that_knows_bad_rows_is_refused(made, ask, tmp_path):
    loader = loader_of(made.url)
    path = tmp_path / "state.json"
    path.write_text(json.dumps({**loader.state_dict(), "quarantine": [3, 4]}))
    status, lines, told = ask(made.url, "--step", 0, "--ranks", 1, *SPLIT, "--state", path)
    assert (status, lines) == (1, [])
    assert "knows 2 bad rows, for which others stand in" in told


def test_an_answer_that_cannot_be_written_is_told(made):
    command = [sys.executable, "-m", "stream", "order", made.url, "--quality"]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "order: the answer cannot be written: No space left on device\n")


def test_an_epoch_that_no_loader_has_is_refused(made, ask):
    assert ask(made.url, "--epoch", 2**63, "--step", 0, "--ranks", 1, *SPLIT)[0] == 2
