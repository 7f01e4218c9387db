"""The reader's side of an iteration: one thread that takes steps from the source and brings each rank its portions.

Invariants:
- one thread owns all of this state; others only ring its bell. It also does what rank 0's receiver does when it is told
  something, see local_link.py, and copies portions while no rank has anything to say;
- no portion of a step is sent before all portions of that step have been read;
- a step is committed when every rank has its batch, steps are committed in order;
- once something failed at a step, no step from there on is sent; the steps before it are committed first, then every
  rank gets one Fault for it. A rank that dies or leaves cannot answer any more, so then the fault is at the first step
  that is not committed;
- at most `prefetch_steps` steps are sent and not committed, and as many more are being read.

`run` ends when the last step is committed or the fault is out. What ranks say of it afterwards belongs to no one and is
dropped by its iteration number; what quick ranks say of the next iteration before that is kept for the next feeder.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from stream.carry import Carried, carried
from stream.errors import LinkError, RankError
from stream.filling import Filling
from stream.holdup import Warnings, holdup
from stream.listening import Listening
from stream.offers import StepOffer
from stream.peers import Peer
from stream.protocol import (
    Again,
    Begin,
    Bye,
    Commit,
    End,
    Failed,
    Fault,
    Leave,
    Message,
    Ready,
    Waiting,
    Warn,
)
from stream.pump import Pump
from stream.roll_call import disagreement, missing
from stream.underway import Underway
from stream.wake import Bell


class Feeder:
    """Feeds one iteration to its ranks. `run` is to be called in a thread of its own; `bell` wakes it.

    Args:
        peers: All ranks; rank 0 over its local link.
        offers: Makes the steps once all ranks have begun.
        iteration: Number of the iteration.
        prefetch_steps: See the module.
        filling: Brings portions into their memory; rings the bell.
        bell: Rung by the source and by who closes.
    """

    def __init__(
        self,
        peers: Sequence[Peer],
        offers: Callable[[], Iterator[StepOffer]],
        *,
        iteration: int,
        prefetch_steps: int,
        bell: Bell,
        filling: Filling,
    ) -> None:
        self._peers, self._iteration, self._prefetch = peers, iteration, prefetch_steps
        self._bell = bell
        self._pump: Pump[StepOffer] = Pump(_made(offers), depth=prefetch_steps, wake=bell.ring)
        self._filling = filling
        self._steps: deque[Underway] = deque()
        self._held: StepOffer | None = None
        self._next = 0
        self._started = self._ended = self._again = False
        self._failure: tuple[int, Carried] | None = None
        self._read_up_to: str | None = None
        self._may_have_room = True
        self._fed: set[int] = set()

    def run(self) -> None:
        """Feed until the iteration is over."""
        listening = Listening(self._peers, self._bell)
        try:
            self._recall()
            self._feed(listening)
        except BaseException as exc:  # noqa: BLE001 - every rank has to hear of it, whatever it is
            self._tell(self._first_open(), carried(exc, rank=0, step=self._first_open()))
        finally:
            listening.close()
            self._flush()
            self._pump.end()
            self._filling.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads that read; False if one still is inside the source when the time is up."""
        return self._pump.join(timeout_s)

    def _recall(self) -> None:
        """Act on what ranks said of this iteration before it was the reader's."""
        for peer in self._peers:
            early, peer.early = peer.early, []
            for message in early:
                self._on(peer, message)

    def _feed(self, listening: Listening) -> None:
        while True:
            if not self._hear(listening):
                self._filling.help()
            if self._again:
                self._peers[0].say(Again(self._iteration))
                return
            if not self._started and self._failure is None:
                if missing(self._peers):
                    continue
                self._started = True
                if (told := disagreement(self._peers)) is not None:
                    self._fail(0, told)
                else:
                    self._pump.start()
            self._admit()
            self._send()
            self._commit()
            if self._is_over():
                return
            self._flush()

    def _flush(self) -> None:
        for peer in self._peers:
            peer.flush()

    def _is_over(self) -> bool:
        if self._failure is not None:
            step, told = self._failure
            if self._steps and self._steps[0].number < step:
                return False
            self._tell(step, told)
            return True
        if self._ended and not self._steps and self._held is None:
            for peer in self._peers:
                if peer.rank not in self._fed:
                    peer.say(End(self._iteration))
            return True
        return False

    def _hear(self, listening: Listening) -> bool:
        """Wait until a link or the bell has something, and act on all messages that came.

        While there is something to copy it waits for nothing; False if nothing came.
        """
        for peer, said in listening.hear(wait=not self._filling.has_work):
            if isinstance(said, LinkError):
                self._on_down(peer, said)
            else:
                self._on(peer, said)
        return listening.was_woken

    def _on(self, peer: Peer, message: Message) -> None:
        if isinstance(message, Bye):
            peer.farewell = True
        elif isinstance(message, Warn):
            Warnings.say(f"rank {peer.rank}: {message.text}")
        elif message.iteration == self._iteration:
            self._on_own(peer, message)
        elif message.iteration > self._iteration:
            peer.early.append(message)

    def _on_own(self, peer: Peer, message: Message) -> None:
        """Act on a message of this iteration."""
        if isinstance(message, Ready):
            peer.returned(message.back, message.worn)
            self._release(peer, message.number)
            self._answered(peer, message.step)
        elif isinstance(message, Failed):
            self._release(peer, message.number)
            self._fail(message.step, message.told)
        elif isinstance(message, Begin):
            peer.returned((), message.worn)
            peer.renew(message.kept)
            peer.begun = message
        elif isinstance(message, Leave):
            self._on_leave(peer, message)
        elif isinstance(message, Waiting):
            self._on_waiting(peer, message)

    def _release(self, peer: Peer, number: int) -> None:
        peer.release(number)
        self._may_have_room = True

    def _answered(self, peer: Peer, step: int) -> None:
        for underway in self._steps:
            if underway.number == step:
                underway.unready.discard(peer.rank)
                return

    def _on_leave(self, peer: Peer, message: Leave) -> None:
        peer.left = message
        if peer.done:
            return
        told = message.told
        if told is None:
            problem = "left the iteration, so no other rank can go on"
            told = carried(RankError(peer.rank, message.taken, problem), rank=peer.rank, step=message.taken)
        self._fail(self._first_open(), told)

    def _on_down(self, peer: Peer, error: LinkError) -> None:
        peer.down = str(error)
        if peer.done:
            return
        if peer.farewell and not self._started:
            self._again = True
            return
        step = self._first_open()
        problem = f"is gone: {error.problem}"
        self._fail(step, carried(RankError(peer.rank, step, problem), rank=peer.rank, step=step))

    def _on_waiting(self, peer: Peer, message: Waiting) -> None:
        why = holdup(self._peers, self._steps, self._read_up_to)
        waited = f"rank {peer.rank} has been waiting {message.seconds:.0f} s for step {message.step}"
        Warnings.say(f"{waited}: {why}", kind="waiting")

    def _fail(self, step: int, told: Carried) -> None:
        if self._failure is None or step < self._failure[0]:
            self._failure = (step, told)

    def _first_open(self) -> int:
        return self._steps[0].number if self._steps else self._next

    def _tell(self, step: int, told: Carried) -> None:
        for peer in self._peers:
            peer.say(Fault(self._iteration, step, told))

    def _admit(self) -> None:
        """Take steps from the source, as long as there is room, and let their portions be read."""
        while self._failure is None and len(self._steps) < 2 * self._prefetch:
            if self._held is None:
                pulled = self._pump.take()
                if pulled is None:
                    return
                if pulled.error is not None:
                    self._fail(self._next, carried(pulled.error, rank=0, step=self._next))
                    return
                if pulled.item is None:
                    self._ended = True
                    return
                self._held = pulled.item
            step = Underway.begin(self._next, self._held, self._peers) if self._may_have_room else None
            if step is None:
                self._may_have_room = False  # until a span comes back: trying is not cheap
                return
            self._read_up_to, self._held = self._held.where, None
            self._next += 1
            self._steps.append(step)
            self._filling.begin(step)

    def _send(self) -> None:
        self._filling.settle()
        for step in islice(self._steps, self._prefetch):
            if self._failure is not None and step.number >= self._failure[0]:
                return
            if step.sent:
                continue
            if step.loading:
                return
            if step.error is not None:
                self._fail(step.number, carried(step.error, rank=0, step=step.number))
                return
            step.send(self._iteration, self._peers)
            self._fed.update(step.ranks)

    def _commit(self) -> None:
        while self._steps and self._steps[0].sent and not self._steps[0].unready:
            step = self._steps.popleft()
            for rank in step.ranks:
                peer = self._peers[rank]
                peer.done = step.offer.last[peer.share]
                peer.say(Commit(self._iteration, step.number))
        self._admit()
        self._send()  # also after a failure: good steps before it may have waited behind those just committed


def _made(offers: Callable[[], Iterator[StepOffer]]) -> Iterator[StepOffer]:
    yield from offers()
