"""The resume point of a loader: which rows of which order were delivered. Pure; plain types that JSON keeps.

A position alone means nothing: it counts rows of one order, and an order is a function of the data, the seed and the
options below. So a place carries all of them, and who restores it compares each with what the loader has now.
Ranks, batch size, prefetching, workers and mode are not among them: a position outlives a change of those.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from xxhash import xxh3_128_hexdigest

from stream.errors import OptionError
from stream.options import CaptionPolicy, Shuffle
from stream.point import Bookmark

VERSION: Final = 1
UNKNOWN = "unknown"
"""The digest of a source that has no index, so that nobody can tell whether it still gives the same rows."""

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A position of one epoch's order, and what that order is a function of. Immutable.

    Attributes:
        digest: Identifies the data: `digest_of` its shards, or `UNKNOWN`.
        subset: Identifies the rows that are chosen of them by `keep` and `limit`: `Subset.digest`.
        shuffle: As in `BatchSpec`.
        seed: As in `BatchSpec`.
        window_shards: As in `StreamOptions`; part of the order only with shuffle="window".
        captions: As in `BatchSpec`; it is part of the order whether rows are single captions ("each") or samples.
        epoch: The epoch that the next iteration delivers, counted from 0.
        position: Rows of that epoch that were delivered over all ranks, 0 or more.
        quarantine: Rows that are known to be bad, for which others stand in: see `substitute.py`.
        bookmark: What a source that is no dataset of rows said of itself at the position or before, if it says
            anything; its state is base64 of what `whole.to_bytes` packs. It stands in the dict only if there is one.
        version: Of these fields and their meaning.
    """

    digest: str
    subset: str
    shuffle: Shuffle | None
    seed: _Seed
    window_shards: Annotated[int, msgspec.Meta(ge=1)]
    captions: CaptionPolicy
    epoch: _Whole
    position: _Whole
    quarantine: tuple[_Whole, ...] = ()
    bookmark: Bookmark | None = None
    version: Literal[1] = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON keeps them."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        if self.bookmark is None:
            del fields["bookmark"]
        return {**fields, "quarantine": list(self.quarantine)}

    @classmethod
    def from_dict(cls, data: object, *, now: "Place", strict: bool = True) -> Self:
        """Read what `to_dict` gave, for a loader whose own place is `now`; its epoch and position do not matter.

        Without `strict` the state may be of other data or another order; its epoch and position are then those of now,
        and what the other source said of itself is left out.

        Raises:
            OptionError: Names the field, what was expected and what was found: the state has another form or version,
                or was taken from other data or another order.
        """
        if not isinstance(data, Mapping):
            raise OptionError("state", data, "must be the dict that a loader saved")
        place = cls(**_fields_of(cls, data))
        for name, saved, expected in _compared(place, now) if strict else ():
            if saved != expected:
                problem = f"it was saved with this and the loader has {expected!r}: {_MEANINGS[name]}"
                raise OptionError(_named(name), saved, problem)
        if place.bookmark is not None and place.bookmark.position > place.position:
            problem = f"it lies behind the position of the state, {place.position}; the dict was changed"
            raise OptionError("state['bookmark']['position']", place.bookmark.position, problem)
        return place if strict else msgspec.structs.replace(place, bookmark=None)

    @property
    def doubt(self) -> str | None:
        """Why nobody can tell whether the data are still the same, in words for a warning; None if one can."""
        if self.digest != UNKNOWN:
            return None
        how = "counting" if self.bookmark is None else "what the source said of itself"
        return (
            f"position {self.position} of epoch {self.epoch} is restored by {how}: this source has no index, so "
            "nothing tells whether it still gives the same rows in the same order"
        )


def digest_of(shardlist: Sequence[tuple[str, int, str]]) -> str:
    """Identify data by its shards in storage order.

    Args:
        shardlist: Name, number of rows and digest of each shard.

    Returns:
        xxh3_128 of them as JSON, in lower-case hex.
    """
    return str(xxh3_128_hexdigest(msgspec.json.encode(list(shardlist))))


_MEANINGS = {
    "digest": "other data, where the position means other rows; give the loader the source that the state is of, or "
    "start these data at the same position by load_state_dict(state, strict=False)",
    "subset": "other rows of the data are chosen; use the keep and limit that the state is of, or start these rows at "
    "the same position by load_state_dict(state, strict=False)",
    "shuffle": "another order; use the shuffle that the state is of, or start afresh",
    "seed": "another order; use the seed that the state is of, or start afresh",
    "window_shards": "another order; use the window_shards that the state is of, or start afresh",
    "captions": 'only "each" makes every caption a row, so the position means other rows; use the captions that the '
    "state is of, or start afresh",
}


def _compared(saved: Place, now: Place) -> list[tuple[str, object, object]]:
    """Name, saved and present value of all that a position depends on; equal where a difference changes no row."""
    pairs: list[tuple[str, object, object]] = [
        ("digest", saved.digest, now.digest),
        ("subset", saved.subset, now.subset),
        ("shuffle", saved.shuffle, now.shuffle),
        ("seed", saved.seed, now.seed),
    ]
    if saved.shuffle == "window":
        pairs.append(("window_shards", saved.window_shards, now.window_shards))
    if "each" in (saved.captions, now.captions):
        pairs.append(("captions", saved.captions, now.captions))
    return pairs


def _fields_of(place: type[Place], data: Mapping[Any, object]) -> dict[str, Any]:
    """Check each field by itself, the version first, since other versions have other fields."""
    known = {field.name: field for field in msgspec.structs.fields(place)}
    present = [name for name in known if name in data or name != "bookmark"]
    for name in ("version", *present):
        if name not in data:
            raise OptionError("state", dict(data), f"has no {name!r}; it must be the dict that a loader saved")
        try:
            msgspec.convert(data[name], known[name].type)
        except msgspec.ValidationError as exc:
            problem = f"this loader reads version {VERSION}" if name == "version" else f"the saved {name} is none"
            raise OptionError(_named(name), data[name], f"{problem} ({exc})") from exc
    for name in data:
        if name not in known:
            raise OptionError(_named(name), data[name], f"version {VERSION} has no such field; a newer loader wrote it")
    return {name: msgspec.convert(data[name], known[name].type) for name in present}


def _named(field: object) -> str:
    return f"state[{field!r}]"
