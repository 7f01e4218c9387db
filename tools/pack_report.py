"""What a packing gave: one JSON object for programs, one table for people."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from rejections import Rejection


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one packing.

    `images` and `captions` are in the dataset; `missing`, `bad`, `uncaptioned` and `unknown_image` count the lines of
    `rejected.jsonl` by their kind. `bytes` is the size of all shards, `image_bytes` that of the images in them;
    `digest` identifies the data (shards/FORMAT.md). `workers` is 0 where nothing was decoded. `seconds` run from the
    start to the published manifest.
    """

    out: str
    name: str
    images: int
    captions: int
    missing: int
    bad: int
    uncaptioned: int
    unknown_image: int
    shards: int
    bytes: int
    image_bytes: int
    seconds: float
    images_per_s: float
    workers: int
    check: str
    digest: str


def count_kinds(rejections: Iterable[Rejection]) -> dict[str, int]:
    """Return how many rejections there are of each kind, 0 included."""
    counts = Counter(rejection.kind for rejection in rejections)
    return {kind: counts[kind] for kind in ("missing", "bad", "uncaptioned", "unknown_image")}


def to_json(report: Report) -> str:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report).decode() + "\n"


def to_table(report: Report) -> str:
    """Return the report as a table for people."""
    left_out = report.missing + report.bad + report.uncaptioned + report.unknown_image
    by_kind = f"{report.missing} missing, {report.bad} bad, {report.uncaptioned} without captions, "
    by_kind += f"{report.unknown_image} unknown to the captions file"
    checked = f"each decoded once, by {report.workers} processes" if report.workers else "NOT decoded: --check none"
    rows = (
        ("output", report.out),
        ("images", f"{report.images:,} ({checked})"),
        ("captions", f"{report.captions:,}"),
        ("left out", f"{left_out:,} ({by_kind})" if left_out else "0"),
        ("shards", f"{report.shards:,} ({report.bytes / 2**20:,.1f} MiB)"),
        ("time", f"{report.seconds:.1f} s ({report.images_per_s:,.0f} images/s)"),
    )
    return "".join(f"{label:<9} {value}\n" for label, value in rows)
