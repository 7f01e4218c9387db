"""A user's own slicing of collated steps, as accelerate's `slice_fn_for_dispatch` has it; done once, on the reader.

A step is collated whole, one batch or several put together, and the function cuts out the portion of each rank.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from stream.cuts import NO_ROWS
from stream.errors import SourceError
from stream.peeked import Peeked
from stream.portions import PortionStep


class Slicing(NamedTuple):
    """How steps are sliced.

    `cut(batch, slice, process_index=, num_processes=)` is the user's, `join` puts batches together along their rows,
    `rows_of` counts them. A step is `batches` batches; its end is as in schedule.py.
    """

    cut: Callable[..., Any]
    join: Callable[[list[Any]], Any]
    rows_of: Callable[[Any], int]
    portions: int
    batches: int
    drop_last: bool
    even_batches: bool


def sliced(steps: Iterable[PortionStep], slicing: Slicing) -> Generator[PortionStep, None, None]:
    """Yield the steps out of such with one portion, each a batch; closing it closes `steps`.

    Raises:
        SourceError: a step before the last cannot be sliced evenly.
        Exception: what `steps` or the user's function raised, as itself.
    """
    with closing(_each(steps)) as each:
        ahead = Peeked(_cut(Peeked(each), slicing))
        while ahead.has(1):
            [step] = ahead.take(1)
            following = [portion for next_step in ahead.peek(1) for portion in next_step.portions]
            ended = [following[place] is NO_ROWS for place in range(len(following))]
            yield step._replace(last=ended or [not ahead.has(1)] * slicing.portions)


def _cut(ahead: Peeked[PortionStep], slicing: Slicing) -> Iterator[PortionStep]:
    first = None
    while ahead.has(slicing.batches if slicing.drop_last else 1):
        group = ahead.take(slicing.batches)
        batches = [step.portions[0] for step in group]
        whole = batches[0] if len(batches) == 1 else slicing.join(batches)
        rows = slicing.rows_of(whole)
        if first is None:
            first = _part(slicing, whole, slice(0, slicing.portions), 0)
        if rows % slicing.portions:
            if ahead.has(1):
                problem = f"has {rows} rows, which cannot be sliced over {slicing.portions} ranks evenly"
                raise SourceError(group[0].where, f"{problem}; only the last step of an epoch may be odd")
            if slicing.drop_last:
                return
        portions = _portions(slicing, whole, rows, first)
        yield PortionStep(portions, rows, [], group[-1].position_after, group[0].where)


def _portions(slicing: Slicing, whole: Any, rows: int, first: Any) -> list[Any]:  # noqa: ANN401 - a batch
    share, more = divmod(rows, slicing.portions)
    if more and slicing.even_batches:
        share, more = share + 1, 0
        while slicing.rows_of(whole) < share * slicing.portions:
            whole = slicing.join([whole, first])
    starts = [place * share + min(place, more) for place in range(slicing.portions + 1)]
    places = [slice(starts[portion], starts[portion + 1]) for portion in range(slicing.portions)]
    return [
        _part(slicing, whole, place, portion) if place.start < place.stop else NO_ROWS
        for portion, place in enumerate(places)
    ]


def _part(slicing: Slicing, whole: Any, place: slice, portion: int) -> Any:  # noqa: ANN401 - a batch
    return slicing.cut(whole, place, process_index=portion, num_processes=slicing.portions)


def _each(steps: Iterable[PortionStep]) -> Generator[PortionStep, None, None]:
    yield from steps  # whoever closes this closes them, where they can be closed
