"""One rank of `fault_pool.RankPool`: joins the group, then runs the functions that it is told to run.

Called with the number of a connected socket and "cpu" or "cuda". A request
is one line of JSON, an answer too. Between calls accelerate's state is made new, but for the process group.
"""

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Join the group and answer requests until the other side is gone or says so."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody outlives the one who started it
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with socket.socket(fileno=int(arguments[0])) as talk:
        talk.set_inheritable(False)
        _serve(talk, arguments[1])


def _serve(talk: socket.socket, device: str) -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    if device == "cuda" and torch.cuda.device_count() < ranks:
        torch.distributed.init_process_group("gloo")  # NCCL refuses ranks that share a device
    accelerator = Accelerator(cpu=device == "cpu")
    if accelerator.num_processes != ranks:
        raise SystemExit(f"{accelerator.num_processes} ranks joined, not {ranks}")
    _say(talk, {"found": None, "error": None})
    with talk.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            if "end_training" in request:
                if request["end_training"]:
                    accelerator.end_training()
                return
            _say(talk, _answer(request))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"found": None, "error": None}
    AcceleratorState._reset_state()  # noqa: SLF001 - accelerate's own tests do it so; the process group stays
    GradientState._reset_state()  # noqa: SLF001 - as above
    module, name = request["function"].split(":")
    try:
        answer["found"] = getattr(importlib.import_module(module), name)(**request["arguments"])
    except Exception as exc:  # noqa: BLE001 - told to who asked
        traceback.print_exc()
        answer["error"] = f"{type(exc).__name__}: {exc}"
    gc.collect()  # a loader that was dropped ends within its own call
    return answer


def _say(talk: socket.socket, answer: dict[str, Any]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    talk.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
