"""One rank of an exchange in a process of its own, until it is killed: it says each step that it takes.

Called with its rank of two. What rank 0 shares is a line on the standard output, which is a line on the standard input
of rank 1; here those are the test's.
"""

import sys
import time

import stream.exchange
from offers_made import checked, step_offer
from stream.exchange import Exchange, ExchangeOptions
from stream.receiving import ReceiverOptions


def share(data):
    if data:
        _say(data.hex())
        return data
    return bytes.fromhex(sys.stdin.readline())


def offers():
    for step in range(10_000):
        yield step_offer(step)


def _say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main():
    stream.exchange.own_address = lambda: "127.0.0.1"
    rank = int(sys.argv[1])
    exchange = Exchange(
        ExchangeOptions(name="train", rank=rank, shares=(0, 1), share=share, budget_bytes=1 << 22, prefetch_steps=2)
    )
    options = ReceiverOptions(make=checked, aside=0, prefetch_steps=2, budget_bytes=1 << 20)
    iteration = exchange.begin({}, offers, options)
    while True:
        _say(f"took {iteration.take().batch[0]}")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
