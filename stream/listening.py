"""What the ranks say, as the reader's one thread hears it."""

import select
import threading
from collections.abc import Sequence

from stream.errors import LinkError
from stream.local_link import LocalLink
from stream.peers import Peer
from stream.protocol import Message, decode
from stream.wake import Bell


class Listening:
    """Hears all ranks, in the thread that made it, until `close`.

    Args:
        peers: All ranks.
        bell: Wakes this thread.
    """

    def __init__(self, peers: Sequence[Peer], bell: Bell) -> None:
        self._bell, self._peers = bell, peers
        self._thread = threading.get_ident()
        self._has_mail = self.was_woken = False
        self._by_fd: dict[int, Peer] = {}
        self._poll = select.poll()
        self._poll.register(bell.fileno(), select.POLLIN)
        for peer in peers:
            for fd in peer.filenos():
                self._by_fd[fd] = peer
                self._poll.register(fd, select.POLLIN)
            if isinstance(peer.link, LocalLink):
                peer.link.listen(self._on_mail)

    def hear(self, *, wait: bool) -> list[tuple[Peer, Message | LinkError]]:
        """Return what the ranks said since, or the end of a link, told once; with `wait` something, or the bell rang.

        `was_woken` tells whether anything did, the bell included.

        Raises:
            msgspec.DecodeError: a rank speaks another version.
        """
        ready = self._poll.poll(None if wait and not self._has_mail else 0)
        if self._has_mail:
            self._has_mail = False
            ready += [(peer.link.fileno(), 0) for peer in self._peers if isinstance(peer.link, LocalLink)]
        self.was_woken = bool(ready)
        heard: list[tuple[Peer, Message | LinkError]] = []
        for fd, _ in ready:
            peer = self._by_fd.get(fd)
            if peer is None:
                self._bell.silence()
                continue
            try:
                heard += [(peer, decode(frame.message)) for frame in peer.link.drain()]
            except LinkError as exc:
                self._forget(peer)
                # Without its frames, which would hold the reader and all its memory until a garbage collection
                heard.append((peer, exc.with_traceback(None)))
        return heard

    def close(self) -> None:
        """Let rank 0's messages ring a bell again."""
        for peer in self._peers:
            if isinstance(peer.link, LocalLink):
                peer.link.listen(None)

    def _forget(self, peer: Peer) -> None:
        for fd in peer.filenos():
            if self._by_fd.pop(fd, None) is not None:
                self._poll.unregister(fd)

    def _on_mail(self) -> None:
        """Note that rank 0 said something, in whatever thread: in the reader's own it needs no waking."""
        self._has_mail = True
        if threading.get_ident() != self._thread:
            self._bell.ring()
