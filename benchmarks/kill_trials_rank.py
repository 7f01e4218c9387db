"""One rank of a kill trial: trains from the last checkpoint on, saves every few steps, until all epochs are done.

The model counts: its one weight grows by the number of real rows of every optimizer step, on all ranks together, so
what counted is in the weights themselves; beside them the checkpoint holds the keys of those rows. A checkpoint is
written under another name and renamed when all ranks are done with it, so one that was cut short by a kill is never
found.
"""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate import Accelerator, DataLoaderConfiguration

from answering import Tell, serve
from kill_trials_plan import LATEST, LEDGER, WHOLE_STEP, Ended, Ledger, Plan, latest, ledger_of
from meeting import WrongRanksError, meet
from stream.loader import StreamLoader

_SIDE = 32


class Counter(torch.nn.Module):
    """Its weight is the number of rows that it was trained on, float64."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a loss whose gradient is minus the number of rows."""
        return -(self.rows * rows).sum()


class Trial:
    """One rank of one launch."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._folder = plan, Path(plan.folder)
        config = DataLoaderConfiguration(dispatch_batches=plan.mode == "dispatch", split_batches=True)
        self._accelerator: Any = Accelerator(
            cpu=True, dataloader_config=config, gradient_accumulation_steps=plan.accumulation
        )
        if self._accelerator.num_processes != plan.ranks:
            raise WrongRanksError(self._accelerator.num_processes, plan.ranks)
        self.loader = StreamLoader(
            plan.data, accelerator=self._accelerator, batch_size=WHOLE_STEP, image_size=_SIDE, seed=7
        )
        self._model, self._optimizer, _ = self._accelerator.prepare(
            model := Counter(), torch.optim.SGD(model.parameters(), lr=1.0), self.loader
        )
        self._counted: list[list[str]] = [[] for _ in range(plan.epochs)]
        self._pending: list[str] = []
        self._launches, self._saved = 0, 0
        self._restore()

    def run(self) -> Ended:
        """Train until all epochs are done.

        Raises:
            AssertionError: the weights are not made of the samples that counted.
        """
        steps = 0
        while self.loader.epoch < self._plan.epochs:
            epoch = self.loader.epoch
            for batch in self.loader:
                self._step(epoch, batch)
                steps += 1
                if steps % self._plan.save_every == 0:
                    self._save()
        self._save()
        self.loader.close()
        self._accelerator.end_training()
        return Ended(samples=sum(map(len, self._counted)))

    def _step(self, epoch: int, batch: dict[str, Any]) -> None:
        time.sleep(self._plan.step_s)
        keys: list[str] = self._accelerator.gather_for_metrics(batch["key"], use_gather_object=True)
        plan, mine = self._plan, len(batch["key"])
        first = self._accelerator.process_index * mine
        real = max(0, min(mine, len(keys) - first))  # padding comes last
        with self._accelerator.accumulate(self._model):
            # Gradients are averaged over ranks and over what is accumulated, and rows are to be added up
            loss = self._model(torch.tensor([float(real * plan.ranks * plan.accumulation)], dtype=torch.float64))
            self._accelerator.backward(loss)
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._pending += keys
        if self._accelerator.sync_gradients:
            self._counted[epoch] += self._pending
            self._pending = []

    def _save(self) -> None:
        self._check()
        self._saved += 1
        name = f"checkpoint-{self._launches}-{self._saved}"
        part = self._folder / f"{name}.part"
        self._accelerator.save_state(part)
        if self._accelerator.is_main_process:
            ledger = Ledger(epochs=self._counted, launches=self._launches)
            (part / LEDGER).write_bytes(msgspec.json.encode(ledger))
        meet()  # everybody's part of it is there
        if self._accelerator.is_main_process:
            part.rename(self._folder / name)
            (self._folder / f"{LATEST}.part").write_text(name)
            (self._folder / f"{LATEST}.part").replace(self._folder / LATEST)
        meet()  # before anybody writes the next one

    def _restore(self) -> None:
        checkpoint = latest(self._folder)
        meet()  # all have seen the same
        if checkpoint is not None:
            self._accelerator.load_state(checkpoint)
            ledger = ledger_of(checkpoint)
            self._counted, self._launches = ledger.epochs, ledger.launches
        self._launches += 1
        self._check()

    def _check(self) -> None:
        rows, counted = float(self._accelerator.unwrap_model(self._model).rows), sum(map(len, self._counted))
        if rows != counted:
            raise AssertionError(f"the weights are made of {rows:g} rows, the keys say {counted}")


def work(plan: Plan, tell: Tell) -> Ended:
    """Train from the last checkpoint on."""
    torch.set_num_threads(1)
    trial = Trial(plan)
    tell(f"goes on at row {trial.loader.position} of epoch {trial.loader.epoch}")
    return trial.run()


if __name__ == "__main__":
    sys.exit(serve(Plan, work))
