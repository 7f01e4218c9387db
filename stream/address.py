"""Where this host can be reached by the other hosts of the job."""

import socket
from typing import Any

import torch.distributed


def own_address() -> str:
    """Return the address of the interface over which this host reaches the job's master; loopback if that is here.

    The master is that of the job's process group, so no environment variable is read. A job that met through a file
    has none; then it is the address that this host's own name stands for.
    """
    master = _master()
    if master is None:
        return socket.gethostbyname(socket.gethostname())
    host, port = master
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address


def _master() -> tuple[str, int] | None:
    store: Any = torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public way
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return None if host is None or port is None else (host, port)
