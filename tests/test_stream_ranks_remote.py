"""Real ranks over real servers: S3 and plain HTTP, through faults, while the server is away, and resumed."""

import random
import threading
import time

import pytest
import s3fs

from faulty_proxy import Fault, FaultyProxy
from packed import make_packed
from servers import s3_options, s3_server, seaweed_server, web_server
from shards.store import open_store

pytest_plugins = ["rank_pool"]
pytestmark = pytest.mark.ranks
SAMPLES = 29
KINDS = [
    Fault("status", status=500),
    Fault("status", status=503),
    Fault("status", status=429, headers={"Retry-After": "1"}),
    Fault("refuse"),
    Fault("cut", at=100),
    Fault("reset", at=1),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    made = make_packed(root / "bucket" / "made", SAMPLES)
    with web_server(root) as web, s3_server(root) as s3:
        yield {"http": web, "s3": s3, "keys": made.keys}


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory):
    """The port of a SeaweedFS that the dataset was packed to."""
    with seaweed_server(tmp_path_factory.mktemp("weed") / "data") as port:
        files = s3fs.S3FileSystem(**s3_options(port), skip_instance_cache=True)
        files.mkdir("bucket")
        make_packed(open_store("s3://bucket/made", storage_options=s3_options(port)), SAMPLES)
        yield port


def given(kind, port, mode, **options):
    """What `remote_job:epoch` is told."""
    if kind == "s3":
        return {"url": "s3://bucket/made", "mode": mode, "storage_options": s3_options(port), **options}
    return {"url": f"http://127.0.0.1:{port}/bucket/made", "mode": mode, "storage_options": {}, **options}


def rows_of(answers):
    assert {answer["ranks"] for answer in answers} == {len(answers)}
    assert [answer["said"] for answer in answers] == [""] * len(answers)
    return [row for step in zip(*(answer["steps"] for answer in answers), strict=True) for part in step for row in part]


def every_row(served, *, but=()):
    return [[key, number] for number, key in enumerate(served["keys"]) if number not in but]


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
@pytest.mark.parametrize("kind", ["s3", "http"])
def test_every_row_comes_once_and_a_restored_loader_goes_on(pools, served, kind, mode):
    whole = rows_of(pools(2).call("remote_job:epoch", given(kind, served[kind], mode)))
    assert sorted(whole[:SAMPLES]) == every_row(served)
    begun = pools(2).call("remote_job:epoch", given(kind, served[kind], mode, take=1))
    rest = pools(1).call("remote_job:epoch", given(kind, served[kind], mode, state=begun[0]["state"]))
    assert rows_of(begun) + rows_of(rest) == whole[:SAMPLES]


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
def test_what_was_packed_to_an_object_store_is_read_from_it(pools, served, seaweed, mode):
    whole = rows_of(pools(2).call("remote_job:epoch", given("s3", seaweed, mode)))
    assert sorted(whole[:SAMPLES]) == every_row(served)
    begun = pools(2).call("remote_job:epoch", given("s3", seaweed, mode, take=1))
    rest = pools(1).call("remote_job:epoch", given("s3", seaweed, mode, state=begun[0]["state"]))
    assert rows_of(begun) + rows_of(rest) == whole[:SAMPLES]


@pytest.mark.parametrize("mode", ["dispatch", "shard"])
@pytest.mark.parametrize("kind", ["s3", "http"])
def test_faults_that_pass_change_nothing(pools, served, kind, mode):
    whole = rows_of(pools(2).call("remote_job:epoch", given(kind, served[kind], mode)))
    chance, lock = random.Random(f"{kind} {mode}"), threading.Lock()

    def script(_):
        with lock:
            return chance.choice(KINDS) if chance.random() < 0.3 else None

    with FaultyProxy(served[kind], script) as proxy:
        assert rows_of(pools(2).call("remote_job:epoch", given(kind, proxy.port, mode))) == whole
        assert len(proxy.asked) > 10


def test_a_server_that_is_away_for_seconds_and_comes_back_is_waited_for(pools, served, full):
    away_s = full(3, 20)
    with FaultyProxy(served["s3"]) as proxy:
        begun = []

        def script(asked):
            if asked.path.endswith(".tar") and asked.method == "GET" and not begun:
                begun.append(time.monotonic())
            return Fault("refuse") if begun and time.monotonic() < begun[0] + away_s else None

        proxy.script = script
        rows = rows_of(pools(2).call("remote_job:epoch", given("s3", proxy.port, "dispatch")))
    assert begun
    assert sorted(rows[:SAMPLES]) == every_row(served)


def test_a_server_that_stays_away_is_one_error_on_every_rank_within_the_time(pools, served):
    with FaultyProxy(served["s3"]) as proxy:
        proxy.script = lambda asked: Fault("status") if ".tar" in asked.path and "index" not in asked.path else None
        told = given("s3", proxy.port, "dispatch", options={"retry_s": 1.0})
        answers = pools(2).call("remote_job:epoch", told)
    (said,) = {answer["said"] for answer in answers}
    assert said.startswith("StoreError: ")
    assert "s3://bucket/made/made-0000" in said
    assert "tried" in said
