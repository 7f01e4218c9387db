"""Reading from real servers, a web server and one that speaks S3, through a proxy that breaks answers."""

import logging
import os
import random
import shutil
import ssl
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from datasets_made import make_dataset, make_rows
from faulty_proxy import Fault, FaultyProxy
from servers import KEY, SECRET, s3_options, s3_server, web_server
from shards import fsspec_store
from shards.dataset import DatasetReader
from shards.errors import ChecksumError, StoreError
from shards.retry import Patience
from shards.store import open_store

SIZE = 40_000
RANGES = [("a", 5, 1005), ("a", 3000, 9000), ("a", SIZE - 700, SIZE), ("b", 0, 2000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    bucket = root / "bucket"
    bucket.mkdir()
    for name in ("a", "b"):
        (bucket / name).write_bytes(os.urandom(SIZE))
    make_dataset(bucket / "made", make_rows(60), shard_bytes=20_000)
    return root


@pytest.fixture(scope="module")
def ports(folder):
    with web_server(folder) as web, s3_server(folder) as s3:
        yield {"http": web, "s3": s3}


@pytest.fixture(params=["http", "s3"])
def proxy(request, ports):
    with FaultyProxy(ports[request.param]) as made:
        made.kind = request.param
        yield made


def place_of(proxy):
    """URL of the bucket behind a proxy, and storage options."""
    if proxy.kind == "s3":
        return "s3://bucket", s3_options(proxy.port)
    return f"http://127.0.0.1:{proxy.port}/bucket", {}


def store_of(proxy, total_s=20.0):
    url, options = place_of(proxy)
    return open_store(url, storage_options=options, patience=Patience(total_s))


def content(folder, ranges=RANGES):
    return [(folder / "bucket" / name).read_bytes()[start:end] for name, start, end in ranges]


def once(fault, *, after=0):
    """A script that spoils one answer to a GET, behind so many whole ones."""
    left = iter([None] * after + [fault])
    lock = threading.Lock()

    def script(asked):
        with lock:
            return next(left, None) if asked.method == "GET" else None

    return script


FAULTS = {
    "500": Fault("status", status=500),
    "503": Fault("status", status=503),
    "429": Fault("status", status=429),
    "Retry-After": Fault("status", status=503, headers={"Retry-After": "1"}),
    "refused": Fault("refuse"),
    "delayed": Fault("delay", seconds=0.2),
    **{f"{kind} at {at}": Fault(kind, at=at) for kind in ("cut", "reset", "short") for at in (0, 1, 500)},
}


def test_a_fault_that_passes_changes_nothing(proxy, folder):
    store = store_of(proxy)
    for name, fault in FAULTS.items():
        for after in (0, 3):
            proxy.script, asked = once(fault, after=after), len(proxy.asked)
            assert store.read_many(RANGES) == content(folder), (name, after)
            assert len(proxy.asked) - asked > len(RANGES) or fault.kind == "delay", (name, after)


def test_an_answer_that_stands_still_is_given_up_and_asked_for_again(proxy, folder, monkeypatch):
    monkeypatch.setattr(fsspec_store, "_SILENCE_S", 0.5)
    proxy.script = once(Fault("hang", at=10, seconds=30))
    begin = time.monotonic()
    assert store_of(proxy).read_many(RANGES) == content(folder)
    assert time.monotonic() - begin < 25


def test_only_ranges_that_failed_are_asked_for_again(proxy, folder):
    proxy.script = once(Fault("cut", at=3), after=1)
    assert store_of(proxy).read_many(RANGES) == content(folder)
    asked = [(one.start, one.end) for one in proxy.asked if one.method == "GET"]
    assert len(asked) == len(RANGES) + 1
    assert len(set(asked)) == len(RANGES)


@pytest.mark.parametrize("act", ["size", "names", "read", "range", "into"])
def test_every_way_to_read_tries_again(proxy, folder, act):
    fault = Fault("status", status=503)
    left = [fault, fault]
    proxy.script = lambda _: left.pop() if left else None
    store, data = store_of(proxy), content(folder, [("a", 0, SIZE)])[0]
    buffer = bytearray(100)
    acts = {
        "size": lambda: store.size("a") == SIZE,
        "names": lambda: proxy.kind == "http" or store.names() == ["a", "b", "made"],
        "read": lambda: store.read("a") == data,
        "range": lambda: store.read("a", start=7, end=70) == data[7:70],
        "into": lambda: store.read_into("a", memoryview(buffer), start=11) or buffer == data[11:111],
    }
    if act == "names" and proxy.kind == "http":
        store.names()  # a page of links, which this server does not make
    assert acts[act]()
    assert left == []


@pytest.mark.parametrize("act", ["size", "read", "range"])
def test_a_fault_that_lasts_is_an_error_that_names_url_bytes_cause_and_time(proxy, act):
    proxy.script = lambda _: Fault("status", status=503)
    store = store_of(proxy, total_s=1.0)
    acts = {"size": lambda: store.size("a"), "read": lambda: store.read("a"), "range": lambda: store.read_many(RANGES)}
    begin = time.monotonic()
    with pytest.raises(
        StoreError, match=r"bucket/a failed: .*Service Unavailable.*\(tried \d+ times in 1\.\d s\)"
    ) as exc:
        acts[act]()
    assert 1.0 <= time.monotonic() - begin < 20
    assert act != "range" or "in bytes [5, 1005)" in str(exc.value)


def test_what_is_denied_or_absent_is_told_at_once(proxy):
    store = store_of(proxy)
    for act in (lambda: store.size("c"), lambda: store.read("c"), lambda: store.read("c", start=1, end=3)):
        with pytest.raises(FileNotFoundError, match="bucket/c"):
            act()
    proxy.script = lambda _: Fault("status", status=403)
    for act in (lambda: store.size("b"), lambda: store.read("a", start=1, end=3)):
        with pytest.raises(StoreError, match="Forbidden") as caught:
            act()
        assert "tried" not in str(caught.value)


def test_bytes_behind_the_end_are_no_fault_of_the_server(proxy):
    with pytest.raises(StoreError, match=f"3 bytes came for .*: the file ends at byte {SIZE}"):
        store_of(proxy).read_many([("a", SIZE - 3, SIZE + 3)])


def test_a_server_without_ranges_is_told_so(ports):
    with FaultyProxy(ports["http"]) as proxy:
        proxy.kind, proxy.keeps_ranges = "http", False
        with pytest.raises(StoreError, match="the server does not serve ranges"):
            store_of(proxy).read_many([("a", 5, 10)])


def test_a_store_that_fails_for_long_is_warned_of(proxy, folder, caplog, monkeypatch):
    monkeypatch.setattr(fsspec_store, "_WARN_AFTER_S", 0.2)
    begun: list[float] = []

    def script(_):
        begun.append(time.monotonic())
        return Fault("refuse") if begun[-1] < begun[0] + 1.0 else None

    proxy.script = script
    with caplog.at_level(logging.WARNING, "shards"):
        assert store_of(proxy).read_many(RANGES) == content(folder)
    (record,) = caplog.records
    assert "bucket/a has failed for" in record.getMessage()
    assert "s more" in record.getMessage()


@pytest.mark.parametrize("seed", range(2))
def test_random_faults_lose_nothing_double_nothing_and_mix_nothing(proxy, folder, seed, full):
    for number in range(full(1, 25)):
        chance = random.Random(f"{seed} {number}")
        kinds = [fault for fault in FAULTS.values() if fault.kind != "delay" and not fault.headers]

        def script(asked, chance=chance, kinds=kinds):
            fault = chance.choice(kinds) if chance.random() < 0.3 else None
            # What a lying answer to a request without a range says of a file's size, nothing else tells
            return None if fault is not None and fault.kind == "short" and asked.start is None else fault

        proxy.script = script
        url, options = place_of(proxy)
        reader = DatasetReader(f"{url}/made", storage_options=options, patience=Patience(30.0, first_s=0.01))
        local = DatasetReader(str(folder / "bucket" / "made"))
        rows = chance.sample(range(len(local)), len(local))
        for start in range(0, len(rows), 7):
            wanted = rows[start : start + 7]
            found, expected = reader.read(wanted), local.read(wanted)
            assert [(one.key, {s: bytes(v) for s, v in one.parts.items()}) for one in found] == [
                (one.key, {s: bytes(v) for s, v in one.parts.items()}) for one in expected
            ], f"seed {seed} {number}"


def test_secrets_appear_in_no_message_and_no_log(ports, caplog):
    with FaultyProxy(ports["s3"]) as proxy, caplog.at_level(logging.DEBUG, "shards"):
        proxy.kind = "s3"
        options = {**s3_options(proxy.port), "key": "MARKED-KEY", "secret": "MARKED-SECRET"}
        store = open_store("s3://bucket", storage_options=options, patience=Patience(0.3))
        said = [repr(store)]
        for script in (lambda _: None, lambda _: Fault("status"), lambda _: Fault("refuse")):
            proxy.script = script
            for act in (lambda: store.read("a", start=0, end=5), lambda: store.size("a"), store.names):
                with pytest.raises(OSError, match=r"bucket") as caught:
                    act()
                said.append(str(caught.value))
        assert not [text for text in [*said, caplog.text] if "MARKED" in text]


DAMAGE = {"first": Fault("flip", at=0), "middle": Fault("flip", at=349), "shifted": Fault("shifted", at=1)}


@pytest.mark.parametrize("fault", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("way", ["read", "fill"])
def test_a_part_that_came_damaged_is_fetched_once_more(proxy, folder, fault, way, caplog):
    url, options = place_of(proxy)
    reader, local = (
        DatasetReader(f"{url}/made", storage_options=options),
        DatasetReader(str(folder / "bucket" / "made")),
    )
    rows = [3, 4, 17]
    assert len(reader.read(rows)) == 3  # so that all is open
    whole = once(fault)
    proxy.script = lambda asked: whole(asked) if asked.path.endswith(".tar") else None
    with caplog.at_level(logging.WARNING, "shards"):
        assert brought(reader, rows, way) == brought(local, rows, way)
    assert "differ from their checksums (0000000000" in caplog.text
    assert "are fetched again" in caplog.text


@pytest.mark.parametrize("way", ["read", "fill"])
def test_a_part_that_is_damaged_for_good_is_told(proxy, way):
    url, options = place_of(proxy)
    reader = DatasetReader(f"{url}/made", storage_options=options)
    reader.read([3])
    proxy.script = lambda asked: Fault("flip", at=0) if asked.path.endswith(".tar") and asked.method == "GET" else None
    with pytest.raises(ChecksumError, match="part 000000000003"):
        brought(reader, [3], way)


@pytest.mark.parametrize("way", ["read", "fill"])
def test_without_checksums_nothing_is_fetched_again(proxy, folder, way):
    url, options = place_of(proxy)
    reader = DatasetReader(f"{url}/made", storage_options=options, verify=False)
    reader.read([3])
    local = DatasetReader(str(folder / "bucket" / "made"))
    proxy.script = once(Fault("flip", at=0))
    count = len(proxy.asked)
    assert brought(reader, [3], way, verify=False) != brought(local, [3], way)
    assert len(proxy.asked) == count + 1


def test_damage_is_told_shard_by_shard(proxy, folder, caplog):
    url, options = place_of(proxy)
    reader = DatasetReader(f"{url}/made", storage_options=options)
    local = DatasetReader(str(folder / "bucket" / "made"))
    rows = [3, 40]
    reader.read(rows)
    left = [Fault("flip", at=0)] * 2
    proxy.script = lambda asked: left.pop() if left and asked.path.endswith(".tar") and asked.method == "GET" else None
    with caplog.at_level(logging.WARNING, "shards"):
        assert brought(reader, rows, "fill") == brought(local, rows, "fill")
    assert [record.args[0] for record in caplog.records] == [reader.shard_url(row) for row in rows]
    assert reader.shard_url(3) != reader.shard_url(40)


def brought(reader, rows, way, *, verify=True):
    """Key and parts of some rows, read or filled into a memory."""
    if way == "read":
        samples = reader.read(rows)
    else:
        plan = reader.plan(rows)
        memory = memoryview(bytearray(plan.size))
        reader.fill(plan, memory)
        samples = [placed.open(memory, url=plan.urls[placed.shard], verify=verify) for placed in plan.samples]
    return {one.key: {suffix: bytes(part) for suffix, part in one.parts.items()} for one in samples}


# --- what README says of storage_options -----------------------------------------------------------------------


def asked_with(ports, options):
    """The headers of a request for a range, whatever comes of it."""
    with FaultyProxy(ports["s3"]) as proxy:
        known = {"key": KEY, "secret": SECRET, "endpoint_url": f"http://127.0.0.1:{proxy.port}", **options}
        store = open_store("s3://bucket", storage_options=known, patience=Patience(0.0))
        with suppress(OSError):
            store.read("a", start=0, end=5)
        return proxy.asked[-1].headers


def test_an_endpoint_may_stand_by_itself(ports, folder):
    assert asked_with(ports, {})["authorization"].startswith("AWS4-HMAC-SHA256")


def test_anonymous_requests_are_not_signed(ports):
    assert "authorization" not in asked_with(ports, {"anon": True, "key": None, "secret": None})


def test_requesters_may_pay(ports):
    assert asked_with(ports, {"requester_pays": True})["x-amz-request-payer"] == "requester"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl program here to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out", folder / "ca.pem", "-days", "2"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([program, "req", "-x509", *made, *named], check=True, capture_output=True, timeout=60)
    return folder


def test_a_bundle_of_certificates_is_trusted_and_nothing_else_at_once(ports, folder, certificate):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "ca.pem", certificate / "key.pem")
    with FaultyProxy(ports["s3"], tls=tls) as proxy:
        known = {"key": KEY, "secret": SECRET, "endpoint_url": f"https://127.0.0.1:{proxy.port}"}
        trusting = {**known, "client_kwargs": {"verify": str(certificate / "ca.pem")}}
        assert open_store("s3://bucket", storage_options=trusting).read_many(RANGES) == content(folder)
        begin = time.monotonic()
        with pytest.raises(StoreError, match="certificate verify failed") as caught:
            open_store("s3://bucket", storage_options=known).read("a", start=0, end=5)
        assert "tried" not in str(caught.value)
        assert time.monotonic() - begin < 30
