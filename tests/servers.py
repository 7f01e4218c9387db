"""Real servers on loopback for the tests of remote stores: each on a free port, ended by who started it."""

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

RCLONE, WEED = (Path(sys.executable).with_name(name) for name in ("rclone", "weed"))
KEY, SECRET = "AKIAEXAMPLEKEY", "an-example-secret-of-40-characters-00000"
_START_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def web_server(folder: Path) -> Iterator[int]:
    """The port of a web server that serves a folder."""
    with _served("http", str(folder), "--disable-dir-list=false") as port:
        yield port


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """The port of an S3 server whose buckets are the folders of `folder`; its key and secret are those above."""
    with _served("s3", str(folder), "--auth-key", f"{KEY},{SECRET}", "--force-path-style=true") as port:
        yield port


@contextmanager
def seaweed_server(folder: Path) -> Iterator[int]:
    """The port of the S3 server of a SeaweedFS that keeps its data in a folder; it takes any key and secret."""
    folder.mkdir()
    names = ("-s3.port", "-master.port", "-volume.port", "-filer.port")
    ports = [port for port, _ in zip(_port_pairs(), names, strict=False)]
    command = [str(WEED), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-volume.max=8"]
    with _started([*command, *(f"{name}={port}" for name, port in zip(names, ports, strict=True))], ports[0]) as port:
        yield port


def _port_pairs() -> Iterator[int]:
    """Free ports with a free one 10,000 above, where SeaweedFS listens too."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        yield port


def s3_options(port: int) -> dict[str, object]:
    """What s3fs has to be told of a server."""
    return {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}


@contextmanager
def _served(kind: str, *arguments: str) -> Iterator[int]:
    port = free_port()
    with _started([str(RCLONE), "serve", kind, "--addr", f"127.0.0.1:{port}", "--config", "", *arguments], port):
        yield port


@contextmanager
def _started(command: list[str], port: int) -> Iterator[int]:
    with TemporaryFile() as said, subprocess.Popen(command, stdout=said, stderr=said) as server:
        try:
            _await(server, port, said)
            yield port
        finally:
            server.kill()
            server.wait()


def _await(server: "subprocess.Popen[bytes]", port: int, said: object) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    said.seek(0)  # type: ignore[attr-defined]
    raise AssertionError(f"no server on port {port}: {said.read().decode(errors='replace')}")  # type: ignore[attr-defined]
