"""Which choices of a batch need what of the source, in one table; all that is not in it works everywhere."""

from typing import Literal, NamedTuple

from stream.errors import OptionError
from stream.options import BatchSpec, Mode


def check_combination(spec: BatchSpec, *, mode: Mode, indexed: bool, rows: bool) -> None:
    """Refuse what cannot work together with this mode and this kind of source.

    Args:
        spec: What a batch is, sound by itself.
        mode: "dispatch" or "shard".
        indexed: Whether the source is packed shards with their index.
        rows: Whether rows of the source can be asked for by number: packed shards, or a map-style dataset.

    Raises:
        OptionError: The first line of the table that speaks against it.
    """
    asked = {
        "mode": mode,
        "captions": spec.captions,
        "shuffle": spec.shuffle,
        "keep": spec.keep,
        "limit": spec.limit,
        "parts": spec.parts,
    }
    has = {"index": indexed, "rows": rows}
    for line in _NEEDS:
        got = asked[line.option]
        if got is not None and line.value in (_ANY, got) and not has[line.needs]:
            raise OptionError(line.option, got, line.problem)


_ANY = "any"


class _Needs(NamedTuple):
    option: Literal["mode", "captions", "shuffle", "keep", "limit", "parts"]
    value: str
    needs: Literal["index", "rows"]
    problem: str


# What each choice needs of the source; all that is not in this table works everywhere.
_NEEDS = (
    _Needs(
        "mode",
        "shard",
        "rows",
        "every rank asks for its own rows by number, and this source only gives its rows one after another, so each "
        "rank would read all of it; write DataLoaderConfiguration(dispatch_batches=True), or pack the data with "
        "tools/pack_coco.py",
    ),
    _Needs(
        "captions",
        "each",
        "index",
        'rows of single captions are planned from the index of packed shards, and this source has none; use "all", '
        "or pack the data with tools/pack_coco.py",
    ),
    _Needs(
        "shuffle",
        "full",
        "rows",
        "permuted rows are asked for by number, and this source only gives its rows one after another; shuffle in "
        "the source itself, or pack the data with tools/pack_coco.py",
    ),
    _Needs(
        "keep",
        _ANY,
        "index",
        "rows are chosen from the index of packed shards, and this source has none; choose in the source itself",
    ),
    _Needs(
        "parts",
        _ANY,
        "index",
        "members are found by the index of packed shards, and this source has none; let the source give less",
    ),
    _Needs(
        "limit",
        _ANY,
        "rows",
        "this source only gives its rows one after another and does not tell how many; end it in the source itself",
    ),
)
