"""What others made to be iterated: read whole by one process, told its epoch, ended when it is left."""

from collections.abc import Generator, Iterable, Iterator
from copy import copy
from typing import Any, cast

from torch.utils.data import DataLoader

from stream.bookmarks import Bookmarks


def one_pass(iterable: Iterable[Any], *, epoch: int, bookmarks: Bookmarks | None = None) -> Generator[Any, None, None]:
    """Yield what one process reads in an epoch; its worker processes end with it, also when it is closed or fails.

    `bookmarks` say where it begins, and get to know what the source says of itself.
    """
    noted = bookmarks or Bookmarks()
    with noted.open(iterable) as source:
        tell_epoch(source, epoch)
        reading = as_seen_by_one_process(source)
        noted.send(reading)
        iterator = iter(reading)
        try:
            for number, item in enumerate(iterator, start=1):
                noted.passed(reading, number)
                yield item
        finally:
            end(iterator)


def end(iterator: Any) -> None:  # noqa: ANN401 - any iterator
    """End an iterator with its worker processes, where it has any or can be closed.

    An error that somebody holds also holds the frames it went through, and these the iterator: dropping it would not
    end it.
    """
    for name in ("close", "_shutdown_workers"):  # a generator's, that of torch's DataLoader
        ending = getattr(iterator, name, None)
        if callable(ending):
            ending()
            return


def tell_epoch(thing: Any, epoch: int) -> None:  # noqa: ANN401 - duck-typed
    """Call `set_epoch` on a dataset, pipeline or loader, and on what it is made of, once on each.

    webdataset's deterministic stages count epochs themselves; in a worker process that begins anew with each epoch
    they would count from 0 each time.
    """
    for part in {id(part): part for part in _parts(thing)}.values():
        set_epoch = getattr(part, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        elif type(part).__module__.startswith("webdataset.") and isinstance(getattr(part, "epoch", None), int):
            part.epoch = epoch - 1  # it counts one up before it begins


def _parts(thing: Any) -> Iterator[Any]:  # noqa: ANN401 - duck-typed
    yield thing
    if isinstance(thing, DataLoader):
        for part in (thing.dataset, thing.sampler, thing.batch_sampler, getattr(thing.batch_sampler, "sampler", None)):
            yield from _parts(part)
    stages = getattr(thing, "pipeline", None)
    for stage in stages if isinstance(stages, list) else ():
        yield from _parts(stage)


def as_seen_by_one_process(iterable: Iterable[Any]) -> Iterable[Any]:
    """Return the iterable as a job of one process would read it.

    webdataset's pipelines split their shards by rank (`split_by_node`) or refuse several ranks
    (`single_node_only`, the default). Only one process reads here, so a copy without those stages is read instead;
    else it would lose (n-1)/n of the data. Pipelines inside a pipeline or a DataLoader (webdataset's `WebLoader`) are
    treated alike.
    """
    if isinstance(iterable, DataLoader):
        loader, dataset = copy(iterable), cast("Iterable[Any]", iterable.dataset)
        loader.__dict__["dataset"] = as_seen_by_one_process(dataset)  # torch refuses to assign it
        loader.__dict__["_iterator"] = None  # persistent workers read the user's own dataset
        return loader
    stages = getattr(iterable, "pipeline", None)
    if not isinstance(stages, list):
        return iterable
    from webdataset import DataPipeline, shardlists  # noqa: PLC0415 - only who uses it pays for its import

    if not isinstance(iterable, DataPipeline):
        return iterable
    by_rank = (shardlists.single_node_only, shardlists.split_by_node)
    kept = [stage for stage in stages if not any(stage is splitter for splitter in by_rank)]
    alone: Any = copy(iterable)  # keeps what the user set: repetitions, length, a subclass
    alone.pipeline = [as_seen_by_one_process(stage) for stage in kept]
    pipeline: Iterable[Any] = alone
    return pipeline
