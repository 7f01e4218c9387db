"""Two hosts on one machine: network namespaces joined by a virtual cable, and ranks as real processes inside them.

Root, iproute2 and a kernel with namespaces are needed; where one is missing the test is skipped with the reason. All
that is made here has the process id in its name, lives in the namespaces alone, and goes with them.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from ranks import PROGRAMS, TESTS, Rank

DEVICE = "eth0"
NETWORK = "10.77.0.0/24"
MAIN_PORT = 29500
"""Where a job meets. A new namespace has no other user, and ports below 32768 are drawn for no other purpose."""
FILTERED, DROPPED = "100", "200"
"""Preferences of the packet filter's rules: what it lets through comes before what it drops."""
_numbers = count()


@dataclass(frozen=True)
class Host:
    """One namespace. Its end of the cable is called DEVICE."""

    name: str
    address: str

    def ip(self, *arguments: str) -> str:
        """Run iproute2's `ip` inside; return what it printed."""
        return _run("ip", "-n", self.name, *arguments)

    def command(self, *arguments: str | Path) -> list[str]:
        """The command line that runs a program inside; the process is the program itself, not a parent of it."""
        return ["ip", "netns", "exec", self.name, *map(str, arguments)]

    def received_bytes(self) -> int:
        """Bytes that came in over the cable so far, with all headers.

        The kernel hands TCP over in segments of up to 64 KiB here, as a network card with offloading does, so headers
        weigh less than with frames of 1,500 bytes on a real wire: 5 % there.
        """
        return self._statistics("rx")

    def sent_bytes(self) -> int:
        """As `received_bytes`, the other way."""
        return self._statistics("tx")

    def limit(self, rate: str) -> None:
        """Limit what goes out, e.g. to "100mbit"; skips the test where the kernel has no token bucket."""
        bucket = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "200ms")
        _or_skip("tc", "-n", self.name, "qdisc", "replace", "dev", DEVICE, *bucket)

    def limited(self) -> int:
        """How often the limit made a packet wait."""
        (bucket,) = json.loads(_run("tc", "-n", self.name, "-s", "-j", "qdisc", "show", "dev", DEVICE))
        return int(bucket["overlimits"])

    def allow_only(self, ports: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Drop all that goes out but TCP from or to one of `ports`, or of a (local, remote) pair of ports.

        Policy rules are the packet filter that needs no more than iproute2.
        """
        matches = [(end, str(port)) for port in ports for end in ("sport", "dport")]
        matches += [("sport", str(local), "dport", str(remote)) for local, remote in pairs]
        for match in matches:
            self._rule(FILTERED, "ipproto", "tcp", *match, "lookup", "main")
        self._rule(DROPPED, "to", NETWORK, "blackhole")

    def _rule(self, preference: str, *what: str) -> None:
        _or_skip("ip", "-n", self.name, "rule", "add", "pref", preference, *what)

    def _statistics(self, way: str) -> int:
        (device,) = json.loads(self.ip("-s", "-j", "link", "show", DEVICE))
        return int(device["stats64"][way]["bytes"])


@dataclass(frozen=True)
class Network:
    """Two hosts and the cable between them; rank 0 is on the near one."""

    near: Host
    far: Host

    @property
    def hosts(self) -> tuple[Host, Host]:
        return self.near, self.far

    def unplug(self) -> None:
        """Cut the cable for good, so that both hosts see their link go down."""
        self.far.ip("link", "set", DEVICE, "down")

    def cut_silently(self) -> None:
        """Cut the cable for good, so that no host sees it: all packets go to a card that nobody has."""
        for host, other in (self.hosts, self.hosts[::-1]):
            nobody = ("lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", DEVICE)
            host.ip("neigh", "replace", other.address, *nobody)

    def reaches(self, port: int) -> bool:
        """Whether the far host gets a new connection to a listening port of the near one."""
        listen = "import socket; s = socket.create_server(('', {port})); print(flush=True); s.accept()"
        connect = "import socket; socket.create_connection(('{address}', {port}), timeout=3)"
        words = {"address": self.near.address, "port": port}
        server = _python(self.near, listen.format(**words), stdout=subprocess.PIPE)
        try:
            server.stdout.read(1)
            return _python(self.far, connect.format(**words), stderr=subprocess.DEVNULL).wait(20) == 0
        finally:
            server.kill()
            server.wait()
            server.stdout.close()


@contextmanager
def two_hosts() -> Iterator[Network]:
    """Make two namespaces and the cable, and remove them whatever happens; skips the test where that cannot be."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("several hosts need root and iproute2 (ip, tc) for network namespaces")
    number = f"{os.getpid()}-{next(_numbers)}"
    network = Network(Host(f"near-{number}", "10.77.0.1"), Host(f"far-{number}", "10.77.0.2"))
    try:
        for host in network.hosts:
            _or_skip("ip", "netns", "add", host.name)
        near, far = (host.name for host in network.hosts)
        _or_skip("ip", "link", "add", DEVICE, "netns", near, "type", "veth", "peer", "name", DEVICE, "netns", far)
        for host in network.hosts:
            host.ip("addr", "add", f"{host.address}/24", "dev", DEVICE)
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", DEVICE, "up")
        yield network
    finally:
        for host in network.hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


class HostsJob:
    """Ranks of one job, the first half of them on the near host. Ends them when its `with` block ends.

    A program of rank_programs/ is called with the config as JSON, and where to write what it found. Driver and ranks
    tell each other how far they are by empty files in `folder`.
    """

    def __init__(self, network: Network, program: str, config: object, folder: Path, *, ranks: int = 4) -> None:
        self.network = network
        self.ranks = ranks
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        self.processes = [self._start(program, rank) for rank in range(ranks)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
            process.wait()

    def wait_for(self, mark: str, ranks: Sequence[int] | None = None, *, limit_s: float = 100) -> None:
        """Wait until these ranks (None: all) came to a mark of their program."""
        until = time.monotonic() + limit_s
        for rank in range(self.ranks) if ranks is None else ranks:
            while not (self.folder / f"{mark}.{rank}").exists():
                ended = [process.poll() for process in self.processes]
                assert ended == [None] * self.ranks, f"{ended} before {mark!r}:\n{self._text()}"
                assert time.monotonic() < until, f"rank {rank} did not come to {mark!r}:\n{self._text()}"
                time.sleep(0.01)

    def go(self, mark: str) -> None:
        """Let the ranks pass a mark that they wait at."""
        (self.folder / f"{mark}.go").touch()

    def ended(self, *, limit_s: float = 100) -> list[Rank]:
        """Wait for all ranks; return how each ended. One that does not end in time is killed."""
        until = time.monotonic() + limit_s
        return [self._ended(rank, process, until) for rank, process in enumerate(self.processes)]

    def found(self, *, limit_s: float = 100) -> list[Any]:
        """What the ranks found, once all came to a good end."""
        ended = self.ended(limit_s=limit_s)
        assert [rank.code for rank in ended] == [0] * self.ranks, self._text()
        return [rank.found for rank in ended]

    def established(self, host: Host) -> list[tuple[int, int]]:
        """Local and remote port of each TCP connection that a host has over the cable now."""
        process = self.processes[0 if host is self.network.near else -1]
        lines = [line.split() for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
        addresses = {_as_proc_writes(other.address) for other in self.network.hosts if other is not host}
        return [
            (int(local.split(":")[1], 16), int(remote.split(":")[1], 16))
            for _, local, remote, state, *_ in lines
            if state == "01" and remote.split(":")[0] in addresses
        ]

    def _start(self, program: str, rank: int) -> subprocess.Popen[bytes]:
        half = self.ranks // 2
        host = self.network.hosts[rank // half]
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(rank % half),
            "LOCAL_WORLD_SIZE": str(half),
            "MASTER_ADDR": self.network.near.address,
            "MASTER_PORT": str(MAIN_PORT),
            "GLOO_SOCKET_IFNAME": DEVICE,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        }
        found = self.folder / f"found{rank}.json"
        words = host.command(sys.executable, "-W", "error", PROGRAMS / program, self.folder / "config.json", found)
        with (self.folder / f"output{rank}.txt").open("wb") as output:
            return subprocess.Popen(words, env=env, stdout=output, stderr=output, start_new_session=True)

    def _ended(self, rank: int, process: subprocess.Popen[bytes], until: float) -> Rank:
        killed = False
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            killed = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = self.folder / f"found{rank}.json"
        told = json.loads(found.read_text()) if found.exists() else None
        return Rank(process.returncode, killed, self._output(rank), told)

    def _output(self, rank: int) -> str:
        return (self.folder / f"output{rank}.txt").read_text(errors="replace")

    def _text(self) -> str:
        return "\n".join(f"rank {rank}:\n{self._output(rank)}" for rank in range(self.ranks))


def names_left() -> list[str]:
    """Namespaces of this process that still exist."""
    names = _run("ip", "netns", "list").split() if shutil.which("ip") else []
    return [name for name in names if f"-{os.getpid()}-" in name]


def _python(host: Host, code: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(host.command(sys.executable, "-c", code), **streams)


def _as_proc_writes(address: str) -> str:
    return socket.inet_aton(address)[::-1].hex().upper()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def _or_skip(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        pytest.skip(f"this machine cannot do `{' '.join(command)}`: {done.stderr.strip()}")
