"""Run accelerate's own checks, as its wheel brings them, against our dispatcher; tell how each of them ended."""

import os
import sys
import traceback
import types
import warnings
from functools import partial
from unittest import mock

os.environ["ACCELERATE_USE_CPU"] = "1"
warnings.simplefilter("default")  # these checks are not ours to keep free of warnings

import stream  # noqa: E402 - what is imported now is told by the environment how to behave

stream.install()

from accelerate import Accelerator, DataLoaderConfiguration  # noqa: E402 - as above
from accelerate.state import AcceleratorState, GradientState  # noqa: E402 - as above
from rank_job import run  # noqa: E402 - as above

from stream.dispatcher import Dispatcher  # noqa: E402 - as above


def stand_in(name, *contents):
    """Stand in for a library that a module of checks imports, but not for the checks that are run."""
    module = types.ModuleType(name)
    for content in contents:
        setattr(module, content, None)
    sys.modules[name] = module


stand_in("evaluate")
stand_in("transformers", "AutoModelForSequenceClassification", "AutoTokenizer")

from accelerate.test_utils.scripts import test_distributed_data_loop, test_script, test_sync  # noqa: E402 - as above
from accelerate.test_utils.scripts.external_deps import test_metrics  # noqa: E402 - as above
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, default_collate  # noqa: E402 - as above

assert test_metrics.DataLoaderDispatcher.__module__ == "stream.dispatcher"

BOTH = (True, False)
_dispatched = partial(DataLoaderConfiguration, dispatch_batches=True)
# Left alone they would be checks of shard mode, which is accelerate's own
test_distributed_data_loop.DataLoaderConfiguration = _dispatched
for module in (test_sync, test_metrics):
    module.Accelerator = lambda dataloader_config=None, **options: Accelerator(
        dataloader_config=dataloader_config or _dispatched(), **options
    )


def main(config, _):
    return {name: ending_of(check) for name, check in CHECKS.items() if name in config["checks"]}


def ending_of(check):
    """How a check ended, and how often it iterated a loader of ours."""
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    with mock.patch.object(Dispatcher, "_begin", autospec=True, side_effect=Dispatcher._begin) as begun:
        try:
            check()
        except BaseException:  # noqa: BLE001 - any ending is told
            return [traceback.format_exc().replace("Traceback", "Told"), begun.call_count]
    return ["passed", begun.call_count]


def accelerator_of(*, split=False):
    return Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True, split_batches=split))


def central_dl_preparation_check():
    accelerator_of()
    test_script.central_dl_preparation_check()


def gradient_accumulation():
    for split in BOTH:
        for sync_each in BOTH:
            test_sync.test_gradient_accumulation(split, dispatch_batches=True, sync_each_batch=sync_each)


def gradient_accumulation_with_opt_and_scheduler():
    for split in BOTH:
        AcceleratorState._reset_state()
        test_sync.test_gradient_accumulation_with_opt_and_scheduler(split, dispatch_batches=True)


def dataloader_break():
    test_sync.test_dataloader_break()


def torch_metrics():
    for rows in (82, 99, 97, 1):
        for split in BOTH:
            AcceleratorState._reset_state()
            test_metrics.test_torch_metrics(accelerator_of(split=split), rows)


def data_loader():
    dataset, workers = test_distributed_data_loop.DummyDataset(), test_distributed_data_loop.NUM_WORKERS
    size = test_distributed_data_loop.BATCH_SIZE
    lists = [BatchSampler(RandomSampler(dataset), batch_size=size, drop_last=False) for _ in BOTH]
    for loader in (
        DataLoader(dataset, batch_size=size, num_workers=workers),
        DataLoader(dataset, batch_size=size, num_workers=workers, shuffle=True),
        DataLoader(dataset, batch_sampler=lists[0], num_workers=workers),
        DataLoader(dataset, sampler=lists[1], batch_size=None, collate_fn=default_collate, num_workers=workers),
    ):
        test_distributed_data_loop.test_data_loader(loader, accelerator_of())


def stateful(check):
    def run_check():
        for iterable in BOTH:
            AcceleratorState._reset_state()
            check(accelerator_of(), iterable)

    return run_check


CHECKS = {
    "central_dl_preparation_check": central_dl_preparation_check,
    "test_gradient_accumulation": gradient_accumulation,
    "test_gradient_accumulation_with_opt_and_scheduler": gradient_accumulation_with_opt_and_scheduler,
    "test_dataloader_break": dataloader_break,
    "test_torch_metrics": torch_metrics,
    "test_gather_for_metrics_with_iterable_dataset": test_metrics.test_gather_for_metrics_with_iterable_dataset,
    "test_gather_for_metrics_with_non_tensor_objects_iterable_dataset": (
        test_metrics.test_gather_for_metrics_with_non_tensor_objects_iterable_dataset
    ),
    "test_gather_for_metrics_drop_last": test_metrics.test_gather_for_metrics_drop_last,
    "test_pickle_accelerator": test_distributed_data_loop.test_pickle_accelerator,
    "_test_stateful_dataloader_resume": stateful(test_distributed_data_loop._test_stateful_dataloader_resume),
    "_test_stateful_dataloader_save_state_resume": stateful(
        test_distributed_data_loop._test_stateful_dataloader_save_state_resume
    ),
    "test_data_loader": data_loader,
}

run(main)
