"""All ranks of an exchange in this process, a thread for each, and what they leave behind."""

import gc
import queue
import threading
from pathlib import Path

from descriptors import new_descriptors, open_descriptors
from offers_made import checked
from ranks import soon_left_behind
from stream.exchange import Exchange, ExchangeOptions
from stream.receiving import ReceiverOptions

LIMIT_S = 60


def receiving(**changes):
    return ReceiverOptions(
        **{"make": checked, "aside": 0, "prefetch_steps": 2, "budget_bytes": 1 << 20, "timeout_s": 30, **changes}
    )


def exchange_of(rank, ranks, share, **changes):
    """Return the exchange of one rank of a job on this host."""
    settings = {
        "name": "train",
        "rank": rank,
        "shares": tuple(range(ranks)),
        "share": share,
        "budget_bytes": ranks << 20,
        "prefetch_steps": 2,
    }
    return Exchange(ExchangeOptions(**{**settings, **changes}))


class ExchangeJob:
    """Exchanges of so many ranks, and a board on which rank 0 shares its bytes with the others."""

    def __init__(self, ranks, **changes):
        self._boards = [queue.Queue() for _ in range(ranks)]
        self.meetings = 0
        self.exchanges = [exchange_of(rank, ranks, self._share(rank), **changes) for rank in range(ranks)]

    def run(self, program):
        """Run `program(rank, exchange)` in a thread for each rank; return what it returned, or the error it raised."""
        ended = [None] * len(self.exchanges)

        def one(rank):
            try:
                ended[rank] = program(rank, self.exchanges[rank])
            except BaseException as exc:  # noqa: BLE001 - looked at by the test
                ended[rank] = exc

        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(ended))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        return ended

    def close(self):
        for exchange in self.exchanges:
            exchange.close()

    def _share(self, rank):
        def share(data):
            if rank == 0:
                self.meetings += 1
                for board in self._boards[1:]:
                    board.put(data)
                return data
            return self._boards[rank].get(timeout=LIMIT_S)

        return share


def all_of(iteration):
    """Take an iteration to its end."""
    batches = []
    while (delivered := iteration.take()) is not None:
        batches.append(delivered.batch)
    iteration.end()
    return batches


def shared_memory():
    """Return the parts of this process's memory that are mapped from memory files of ours."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:stream" in line]


class Held:
    """What this process holds: compared before and after, nothing may be left."""

    def __init__(self):
        gc.collect()
        self._descriptors, self._memory = open_descriptors(), len(shared_memory())

    def is_all(self):
        """Make sure that nothing was left behind since."""
        assert soon_left_behind(10) == []
        gc.collect()
        assert new_descriptors(self._descriptors) == {}
        assert len(shared_memory()) == self._memory
