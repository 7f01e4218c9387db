"""A proxy in front of a real HTTP or S3 server that does what it is told wrong: `FaultyProxy(port)`.

Each request is shown to `script`, which returns a fault or None. Requests are noted in `asked`.
"""

import http.client
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Asked:
    """One request; `start` and `end` (exclusive) are those of its range, if it has one; header names in lower case."""

    number: int
    method: str
    path: str
    start: int | None
    end: int | None
    headers: dict[str, str]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer.

    Attributes:
        kind: "status": `status` with `headers` instead of the answer; "cut": the body ends after `at` bytes though more
            were promised; "reset": the connection is reset after `at` bytes; "short": an answer of `at` bytes only;
            "shifted": its bytes begin with the one at `at` and end with those before it; "flip": bit 0 of byte `at` is
            flipped; "delay": it comes `seconds` later; "hang": it stops after `at` bytes for `seconds`; "refuse": the
            connection is reset at once.
    """

    kind: str
    at: int = 0
    status: int = 503
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


Script = Callable[[Asked], Fault | None]


class FaultyProxy:
    """Listens on `port`; a context manager.

    `script` may be set at any time. Without `keeps_ranges` files come whole.
    """

    def __init__(self, upstream: int, script: Script = lambda _: None, *, tls: ssl.SSLContext | None = None) -> None:
        self.upstream, self.script, self.keeps_ranges = upstream, script, True
        self.asked: list[Asked] = []
        self._lock, self._stopping = threading.Lock(), threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # the client has gone
                    self.close_connection = True

            def do_GET(self) -> None:
                proxy._answer(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the base class's names

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _note(self, handler: BaseHTTPRequestHandler) -> Asked:
        found = _RANGE.fullmatch(handler.headers.get("Range", ""))
        start = int(found[1]) if found else None
        end = int(found[2]) + 1 if found and found[2] else None
        with self._lock:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            self.asked.append(Asked(len(self.asked), handler.command, handler.path, start, end, headers))
            return self.asked[-1]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", 0))
        sent = handler.rfile.read(length)
        fault = self.script(self._note(handler))
        if fault is not None and fault.kind == "refuse":
            self._drop(handler, reset=True)
            return
        if fault is not None and fault.kind == "status":
            self._send(handler, fault.status, dict(fault.headers), b"", length=0)
            return
        if fault is not None and fault.kind == "delay":
            self._stopping.wait(fault.seconds)
        status, headers, body = self._forward(handler, sent)
        if fault is None or fault.kind == "delay" or handler.command == "HEAD":
            self._send(handler, status, headers, body)
        else:
            self._spoil(handler, status, headers, body, fault)

    def _forward(self, handler: BaseHTTPRequestHandler, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in _HOP}
        if not self.keeps_ranges:
            headers.pop("Range", None)
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            upstream.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                upstream.putheader(name, value)
            upstream.putheader("Content-Length", str(len(sent)))
            upstream.endheaders(sent)
            answer = upstream.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
            if handler.command == "HEAD":
                kept["Content-Length"] = answer.headers.get("Content-Length", "0")
            return answer.status, kept, answer.read()
        except OSError:  # the server is gone
            return 502, {}, b""
        finally:
            upstream.close()

    def _spoil(
        self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, fault: Fault
    ) -> None:
        at = min(fault.at, len(body))
        if fault.kind == "short":
            self._send(handler, status, headers, body[:at])
        elif fault.kind == "shifted":
            self._send(handler, status, headers, body[at:] + body[:at])
        elif fault.kind == "flip":
            self._send(handler, status, headers, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        else:
            self._send(handler, status, headers, body[:at], length=len(body))
            if fault.kind == "hang":
                self._stopping.wait(fault.seconds)
            self._drop(handler, reset=fault.kind == "reset")

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        body: bytes,
        *,
        length: int | None = None,
    ) -> None:
        handler.send_response_only(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if "Content-Length" not in headers:
            handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)
        handler.wfile.flush()

    def _drop(self, handler: BaseHTTPRequestHandler, *, reset: bool) -> None:
        handler.close_connection = True
        time.sleep(0.02)  # what was sent arrives before the end does
        if reset:
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        else:
            handler.connection.shutdown(socket.SHUT_RDWR)
