"""URLs on a command line into shards: tars, brace patterns of tars, folders and manifests of packed datasets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shards.braces import urls_of
from shards.errors import ManifestError, UrlError
from shards.findings import Finding, find
from shards.manifest import FILE_NAME, INDEX, Manifest, ShardInfo
from shards.store import Store, open_store

TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
"""What names a tar; those that are compressed are named as such when they are looked at."""
_RIGHT = "write a tar (path.tar), a pattern such as coco-{000000..000099}.tar, or a packed dataset's folder or manifest"


class Target(NamedTuple):
    """One shard to look at; `info` is its entry where a manifest beside it lists it."""

    store: Store
    name: str
    info: ShardInfo | None

    @property
    def url(self) -> str:
        """Its full URL."""
        return self.store.url_of(self.name)


@dataclass(slots=True)
class Targets:
    """What some URLs name: shards in their order, the packed datasets that were asked for whole, and what is wrong."""

    shards: list[Target] = field(default_factory=list)
    datasets: list[tuple[Store, Manifest]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def find_targets(urls: Sequence[str], *, storage_options: Mapping[str, object] | None = None) -> Targets:
    """Return the shards that URLs name; only manifests are read and folders listed.

    Raises:
        UrlError: a pattern cannot be meant like that, or a folder holds neither a manifest nor tars.
        StoreError: a folder or manifest cannot be read.
    """
    found = Targets()
    folders: dict[str, tuple[Store, Mapping[str, ShardInfo]]] = {}
    for url in urls:
        for one in expand(url):
            folder, name = _split(one)
            if not name.endswith(TARS):
                _add_dataset(open_store(folder, storage_options=storage_options), name or FILE_NAME, found)
                continue
            if folder not in folders:
                store = open_store(folder, storage_options=storage_options)
                folders[folder] = store, _listed(store)
            store, infos = folders[folder]
            found.shards.append(Target(store, name, infos.get(name)))
    _refuse_twice(found)
    return found


def _refuse_twice(found: Targets) -> None:
    seen: set[str] = set()
    for target in found.shards:
        if target.url in seen:
            raise UrlError(target.url, "is named twice, so each of its keys would be; name it once")
        seen.add(target.url)


def expand(pattern: str) -> list[str]:
    """Return the URLs behind a pattern, in its order.

    Raises:
        UrlError: see `urls_of`; says what to write too.
    """
    try:
        return urls_of(pattern)
    except UrlError as exc:
        raise UrlError(pattern, f"{exc.problem}; {_RIGHT}") from exc.__cause__


def _split(url: str) -> tuple[str, str]:
    """Split a URL into (folder, name of a tar or manifest in it, "" for the folder itself)."""
    if not url.endswith((*TARS, ".json")):
        return url, ""
    folder, slash, name = url.rpartition("/")
    if not folder or folder.endswith((":/", "://")):  # "/a.tar" and "memory://a.tar" lie in a root
        folder += slash
    return folder or ".", name


def _listed(store: Store) -> Mapping[str, ShardInfo]:
    """The shards that a manifest beside tars lists; none where it is not one of ours."""
    try:
        manifest = Manifest.from_bytes(store.read(FILE_NAME), url=store.url_of(FILE_NAME))
    except (OSError, ManifestError):  # the tars were asked for, and they are looked at without it
        return {}
    return {info.url: info for info in manifest.shardlist}


def _add_dataset(store: Store, file: str, found: Targets) -> None:
    url = store.url_of(file)
    try:
        manifest = Manifest.from_bytes(store.read(file), url=url)
    except FileNotFoundError:
        found.shards += _loose(store, file, found)
    except ManifestError as exc:
        found.findings.append(find("bad-manifest", url, f"{exc.problem}; {exc.advice}"))
    else:
        found.datasets.append((store, manifest))
        found.shards += [Target(store, info.url, info) for info in manifest.shardlist]


def _loose(store: Store, file: str, found: Targets) -> Iterator[Target]:
    """The tars of a folder without a manifest."""
    names = store.names()
    tars = [name for name in names if name.endswith(TARS)]
    if file != FILE_NAME or not tars:
        raise UrlError(store.url_of(file) if file != FILE_NAME else store.url, f"holds no shards; {_RIGHT}")
    if any(name.endswith(INDEX) for name in names):
        words = "indexes lie here, but not the manifest, so training cannot read the dataset; fetch or pack it again"
        found.findings.append(find("missing-file", store.url_of(FILE_NAME), words))
    for name in tars:
        yield Target(store, name, None)
