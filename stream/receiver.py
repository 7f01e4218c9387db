"""The rank's side of an iteration: a thread takes portions, makes batches, and `take` hands out committed steps.

Beside the reader, in its process, no thread is needed: the feeder's brings what there is to take.

Invariants:
- a step is handed out only after its Commit, in order, and only after every step before it;
- at most `prefetch_steps` batches are made ahead of the training loop, and no further one is begun while those that
  are there hold `budget_bytes` or more;
- a span that is not lent is read before its Ready is sent, never after, and its generation is compared before and
  after;
- every iteration ends in one way for all ranks: after the last step, or with the reader's Fault, or because the link
  is down.

`start` begins; `leave` ends the iteration, its thread and what it holds. The link outlives it.
"""

import select
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stream.aside import Aside
from stream.carry import carried
from stream.ending import Ending
from stream.errors import LinkError, RankError, WaitError
from stream.forks import working
from stream.inbox import Arrived, Inbox
from stream.protocol import (
    Again,
    Begin,
    Commit,
    End,
    Failed,
    Fault,
    Leave,
    Message,
    Portion,
    Ready,
    Waiting,
    Warn,
    encode,
)
from stream.receiving import Delivered, ReceiverOptions
from stream.stacks import all_stacks
from stream.wake import Bell


class Receiver:
    """One iteration on one rank. `take` and `leave` belong to the training loop's thread."""

    def __init__(
        self, inbox: Inbox, options: ReceiverOptions, *, rank: int, iteration: int, facts: Mapping[str, str]
    ) -> None:
        self._inbox, self._options, self._rank, self._iteration = inbox, options, rank, iteration
        self._facts = dict(facts)
        self._state = threading.Condition()
        self._bell = Bell()
        self._waiting: deque[Arrived] = deque()  # portions that are not begun yet
        self._making = 0
        self._made: dict[int, tuple[Portion, Any, int]] = {}
        self._committed = 0
        self._taken = 0
        self._ending = Ending()
        self._closed = False
        self._pool = Aside(self._make_aside, options.aside, name="stream-make") if options.aside else None
        self._thread: threading.Thread | None = None
        self._turn = threading.RLock()  # held by the thread that acts where no thread of its own does
        self._is_called = False

    @property
    def is_stale(self) -> bool:
        """Whether the other side had closed the link on purpose before anything of this iteration came."""
        came = self._taken or self._committed or self._made or self._waiting or self._making or self._ending.fault
        return self._inbox.closed_on_purpose and not came and not self._closed

    @property
    def is_broken(self) -> bool:
        """Whether this rank could not take what it was sent: the two sides differ, so the link is of no use."""
        return self._ending.broken is not None

    def start(self) -> None:
        """Say Begin and start to receive."""
        loans = self._inbox.loans
        worn = loans.returned().worn  # what else is not kept is back
        begin = Begin(self._iteration, self._facts, self._options.borrow, loans.out(), worn)
        self._inbox.post(encode(begin))
        self._is_called = self._inbox.listen(self._act)
        if self._is_called:
            self._act()  # on what came early, during the former iteration
        else:
            self._thread = threading.Thread(target=self._run, name="stream-receive", daemon=True)
            self._thread.start()

    def take(self) -> Delivered | None:
        """Wait for the next step; None after the last one.

        Raises:
            the reader's fault, equal on all ranks; RankError: the reader is gone, or the iteration was left; WaitError:
                `timeout_s` is up.
        """
        step = self._taken
        self._wait_for(step)
        with self._state:
            if self._closed:
                raise RankError(self._rank, step, "this iteration was ended; a loader has one live iteration at a time")
            if self._ending.is_behind(step):
                return None
            if step < self._committed:
                portion, batch, _ = self._made.pop(step)
                self._taken += 1
        if step < self._committed:
            if self._waiting:
                self._go_on()  # there is room for another batch
            return Delivered(batch, portion.real_rows, portion.last, portion.position, portion.bookmark)
        raise self._ending.failure(step)

    def warn(self, text: str) -> None:
        """Let the main process warn of something, once for the job."""
        self._inbox.post(encode(Warn(text)))

    def leave(self, error: BaseException | None = None) -> None:
        """End the iteration and wait for its threads. Idempotent."""
        with self._state:
            if self._closed:
                return
            self._closed = True
        if self._is_called or self._thread is not None:
            if (
                not self._is_over() and not self.is_broken
            ):  # also if receiving failed: the link may well be up, and the others wait
                told = None if error is None else carried(error, rank=self._rank, step=self._taken)
                self._inbox.post(encode(Leave(self._iteration, self._taken, told)))
            self._stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        self._bell.close()
        self._waiting.clear()
        self._made.clear()

    def _stop(self) -> None:
        """Wait until nobody takes anything from the link any more."""
        if self._thread is None:
            self._inbox.listen(None)
            with self._turn:
                pass
        else:
            self._bell.ring()
            self._thread.join()

    def _wait_for(self, step: int) -> None:
        with self._state:
            if self._is_decided(step):
                return
            options, since, warned = self._options, time.monotonic(), False
            while not self._state.wait_for(lambda: self._is_decided(step), self._pause(since, warned=warned)):
                waited = time.monotonic() - since
                if options.timeout_s is not None and waited >= options.timeout_s:
                    raise WaitError(self._rank, step, waited, all_stacks())
                if not warned and waited >= options.warn_after_s:
                    warned = True
                    self._inbox.post(encode(Waiting(self._iteration, step, waited)))

    def _pause(self, since: float, *, warned: bool) -> float | None:
        options, now = self._options, time.monotonic()
        ends = [] if warned else [since + options.warn_after_s]
        ends += [] if options.timeout_s is None else [since + options.timeout_s]
        return max(0.0, min(ends) - now) if ends else None

    def _is_decided(self, step: int) -> bool:
        ending = self._ending
        return step < self._committed or self._closed or ending.is_behind(step) or ending.failed

    def _run(self) -> None:
        poll = select.poll()
        for fd in (self._bell.fileno(), *self._inbox.filenos()):
            poll.register(fd, select.POLLIN)
        try:
            self._hear()  # what came early, during the former iteration
            while not self._closed and not self._is_over():
                self._make_next()
                for fd, _ in poll.poll():
                    if fd == self._bell.fileno():
                        self._bell.silence()
                    else:
                        self._hear()
        except LinkError as exc:
            self._end_by(exc)
        except Exception as exc:  # noqa: BLE001 - a fault of this rank must not leave anybody waiting
            self._break(exc)

    def _act(self) -> None:
        """Do what there is to do, in the thread of who brought it or made room for it."""
        with self._turn:
            if self._closed or self._ending.failed or self._is_over():
                return
            try:
                self._hear()
                self._make_next()
            except LinkError as exc:
                self._end_by(exc)
            except Exception as exc:  # noqa: BLE001 - as in `_run`
                self._break(exc)
            except BaseException as exc:  # of a signal, which is the training loop's own to handle
                self._end_by(LinkError(0, f"receiving was interrupted: {exc!r}"))
                raise

    def _go_on(self) -> None:
        if self._is_called:
            self._act()
        else:
            self._bell.ring()

    def _break(self, error: Exception) -> None:
        """End by an error of this rank, and let the others hear of it; what is on its way then finds nobody."""
        told = carried(error, rank=self._rank, step=self._taken)
        with suppress(LinkError):
            self._inbox.post(encode(Leave(self._iteration, self._taken, told)))
        with self._state:
            self._ending.broken = error
            self._state.notify_all()

    def _end_by(self, error: LinkError) -> None:
        with self._state:
            self._ending.down = error
            self._state.notify_all()

    def _is_over(self) -> bool:
        return self._ending.is_over(self._committed)

    def _hear(self) -> None:
        for message, arrived in self._inbox.take(self._iteration):
            with self._state:
                self._on(message, arrived)
                if not isinstance(message, Portion):
                    self._state.notify_all()

    def _on(self, message: Message, arrived: Arrived | None) -> None:
        if isinstance(message, Portion) and arrived is not None:
            self._waiting.append(arrived)
            if message.last:
                self._ending.steps = message.step + 1
        elif isinstance(message, Commit):
            self._committed = message.step + 1
        elif isinstance(message, Fault):
            self._ending.fault = (message.step, message.told)
        elif isinstance(message, Again):
            raise LinkError(0, "a rank closed its link before the iteration began")
        elif isinstance(message, End):
            self._ending.steps = 0

    def _make_next(self) -> None:
        """Begin the batches for which there is room."""
        while self._waiting and self._has_room():
            arrived = self._waiting.popleft()
            if self._pool is None:
                self._make(arrived)
            else:
                with self._state:
                    self._making += 1
                self._pool.put(arrived)

    def _has_room(self) -> bool:
        with self._state:
            count = len(self._made) + self._making
            held = sum(size for _, _, size in self._made.values())
        return count < self._options.prefetch_steps and (held < self._options.budget_bytes or not count)

    def _make_aside(self, arrived: Arrived) -> None:
        with working():
            self._make(arrived, aside=1)
        self._go_on()

    def _make(self, arrived: Arrived, aside: int = 0) -> None:
        portion = arrived.portion
        number = -1 if arrived.lent else portion.number
        try:
            batch, size = self._options.make(arrived)
            arrived.check()
        except BaseException as exc:
            if not isinstance(exc, Exception) and not aside and _is_main_thread():
                raise  # of a signal that came to the training loop's own thread
            told = carried(exc, rank=self._rank, step=portion.step)
            self._ending.causes[portion.step] = exc
            answer: Failed | Ready = Failed(self._iteration, portion.step, number, told)
        else:
            answer = Ready(self._iteration, portion.step, number, *self._inbox.loans.returned())
            with self._state:
                self._made[portion.step] = (portion, batch, size)
        with self._state:
            self._making -= aside
        arrived.release()
        self._inbox.post(encode(answer))


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
