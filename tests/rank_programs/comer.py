"""Meet rank 0 as another process, and tell what came: how it was reached, and the sum of a portion's bytes.

The invitation comes through stdin, up to its end; the answer goes over the link itself.
"""

import json
import os
import sys

from stream.errors import LinkError
from stream.meet import join
from stream.slab_view import SlabView


def main(rank: int, same_host: bool, uid: int) -> None:
    """Become the user `uid` (-1: stay who it is), meet, answer one portion, wait for the end of the link."""
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    link = join(lambda _: sys.stdin.buffer.read(), name="train", rank=rank, same_host=same_host)
    view = SlabView()
    frame = link.take()
    span = json.loads(frame.message)
    for fd in frame.fds:
        view.add(span["file"], fd)
    memory = frame.payload
    if memory is None:
        memory = view.open(span["file"], span["offset"], span["size"], span["number"])
    told = {"kind": link.kind, "uid": os.getuid(), "pid": os.getpid(), "sum": int(memory.sum())}
    link.post(json.dumps(told).encode())
    try:
        link.take()
    except LinkError as exc:
        sys.stdout.write(f"{exc.problem}\n")
    link.close()
    view.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "same", int(sys.argv[3]))
