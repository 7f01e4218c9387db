"""Walk the members of a tar on any store by ranged reads, and say what is wrong with it.

Invariants: memory does not depend on what headers claim (a window of 1 MiB, extension headers of 1 MiB); no byte is
asked for behind the file's end; each turn of the walk goes on, by a block unless bytes were lost before a header, so
it ends. Data of members is not read, but where a header is damaged: there the next header is looked for.

A member counts as *reached* until the first fault that tarfile and webdataset stop at. Most of those they stop at
without a word, so that members behind it are lost.
"""

import re
from collections.abc import Iterator

from shards.blocks import AHEAD, Blocks
from shards.findings import Finding, find
from shards.headers import BLOCK, KEPT, MAGIC_AT, Header, compression, has_magic, likeness, read_header, read_pax
from shards.members import NO_DATA, Member, misread
from shards.store import Store
from shards.tar import padded

AGAIN = "fetch or pack the shard again"
_MOST_EXTENSION = AHEAD
_EMPTY = bytes(BLOCK)
_MAGIC = re.compile(rb"ustar[\0 ]")


def scan(store: Store, name: str) -> Iterator[Member | Finding]:
    """Yield the members of a tar and what is wrong with it, in the order of the file.

    Raises:
        FileNotFoundError, StoreError: there is no such file, or the store cannot read it.
    """
    return _Walk(Blocks(store, name), store.url_of(name)).run()


class _Walk:
    """`at` is the byte of the next header; `fields` what extension headers said of the next member."""

    def __init__(self, blocks: Blocks, url: str) -> None:
        self._blocks, self._url = blocks, url
        self._at = 0
        self._ended = False
        self._reached = True
        self._start: int | None = None
        self._fields: dict[bytes, bytes] = {}
        self._globals: dict[bytes, bytes] = {}

    def run(self) -> Iterator[Member | Finding]:
        yield from self._beginning()
        while self._at < self._blocks.size and not self._ended:
            block = self._blocks.take(self._at, BLOCK)
            if not block.strip(b"\0"):
                yield from self._orphan("the end of the archive")
                yield from self._end()
            elif len(block) < BLOCK:
                words = f"the file ends inside a header; readers lose this member without a word; {AGAIN}"
                yield self._fault("cut-header", words, self._at)
                self._ended = True
            else:
                header = read_header(block)
                yield from self._damaged(header, block) if isinstance(header, str) else self._header(header)
        if not self._ended:
            yield from self._orphan("the end of the file")
            words = (
                "the file ends behind a member, without a tar's zero blocks: it was cut there, and readers take what is"
            )
            yield self._fault("missing-end", f"{words} left for the whole; {AGAIN}", self._blocks.size)

    def _fault(self, code: str, words: str, byte: int, name: bytes = b"") -> Finding:
        return find(code, self._url, words, byte=byte, name=name)

    def _beginning(self) -> Iterator[Finding]:
        head = self._blocks.take(0, BLOCK)
        if not head:
            self._ended = True
            yield self._fault("empty-file", f"the file has no bytes, so readers fail at it or find nothing; {AGAIN}", 0)
            return
        if not head.strip(b"\0") or (len(head) == BLOCK and not isinstance(read_header(head), str)):
            return
        kind = "" if has_magic(head) else compression(head)
        if kind:
            self._ended = True
            words = f"it is a {kind} file, and rows are read from plain tars only; unpack it to a plain .tar"
            yield self._fault("compressed", words, 0)
        elif not has_magic(head):
            self._ended = self._reached = False
            like = likeness(head)
            words = f"it does not begin with a tar header, but with {head[:12]!r}; {like or AGAIN}"
            yield self._fault("not-a-tar", words, 0)
            self._search(0)

    def _damaged(self, problem: str, block: bytes) -> Iterator[Finding]:
        """Go on at the next sound header: where the damaged one says, or else at the first that is found."""
        silent = "fail at it" if self._at == 0 or self._start is not None else "take it for the end, without a word"
        found, size = self._at, _guess(block)
        self._reached = False
        self._forget()
        follower = found + BLOCK + padded(size)
        if size >= 0 and self._sound(self._blocks.take(follower, BLOCK), zeros=has_magic(block)):
            self._at = follower
        else:
            self._search(max(found - BLOCK + 1, 0))  # bytes may have been lost before it
        if (self._at - found) % BLOCK and not self._ended:
            problem += ", and bytes before or in it were lost or added, as by a transfer in text mode"
        name = block[:100].split(b"\0", 1)[0]
        yield self._fault("bad-header", f"{problem}; readers {silent}; {AGAIN}", found, name)

    def _sound(self, block: bytes, *, zeros: bool) -> bool:
        if block == _EMPTY:
            return zeros
        return len(block) == BLOCK and not isinstance(read_header(block), str)

    def _search(self, at: int) -> None:
        """Go on at the first sound USTAR header that begins at byte `at` or behind it, or end."""
        length = 16 * BLOCK
        while at < self._blocks.size:
            chunk = self._blocks.take(at, length)
            for match in _MAGIC.finditer(chunk, MAGIC_AT):
                first = match.start() - MAGIC_AT
                block = chunk[first : first + BLOCK]
                if len(block) == BLOCK and not isinstance(read_header(block), str):
                    self._at = at + first
                    return
            at += len(chunk) - (BLOCK - 1 if at + len(chunk) < self._blocks.size else 0)
            length = min(2 * length, AHEAD)
        self._ended = True

    def _end(self) -> Iterator[Finding]:
        """Look behind a zero block: there is nothing but zero bytes behind a sound end."""
        at, size = self._at, self._blocks.size
        if size < at + 2 * BLOCK:
            self._ended = True
            code, lost = ("short-end", "perhaps nothing") if size >= at + BLOCK else ("missing-end", "perhaps members")
            words = (
                f"the file ends inside the two zero blocks that end a tar, so it was cut and {lost} is missing; {AGAIN}"
            )
            yield self._fault(code, words, size)
            return
        more = self._first_byte(at)
        if more is None:
            self._ended = True
            return
        first = at + (more - at) // BLOCK * BLOCK
        block = self._blocks.take(first, BLOCK)
        another = len(block) == BLOCK and not isinstance(read_header(block), str)
        what = "another archive begins" if another else "data follows"
        words = (
            f"{what} behind the zero block at byte {at}, which ends a tar: readers never come to it, without a word; "
        )
        yield self._fault("data-after-end", words + "pack it again (join tars with `tar --concatenate`, not cat)", more)
        self._reached = False
        self._search(first)

    def _first_byte(self, at: int) -> int | None:
        """The byte of the first data from `at` on."""
        while at < self._blocks.size:
            chunk = self._blocks.take(at, AHEAD)
            data = chunk.lstrip(b"\0")
            if data:
                return at + len(chunk) - len(data)
            at += len(chunk)
        return None

    def _header(self, header: Header) -> Iterator[Member | Finding]:
        if header.kind in (b"L", b"K", b"x", b"X", b"g"):
            yield from self._extension(header)
            return
        sparse = header.kind == b"S" or any(field.startswith(b"GNU.sparse.") for field in self._fields)
        start, at = self._at if self._start is None else self._start, self._at
        name, size = self._named(header)
        self._forget()
        for code, words in misread(header, name, sparse=sparse):
            yield self._fault(code, words, at, name)
        offset = at + BLOCK
        if header.kind == b"S":
            offset += BLOCK * self._more_sparse(at)
        stored = 0 if header.kind in NO_DATA else size
        self._at = offset + padded(stored)
        kind = "S" if sparse else header.kind.decode("latin-1")
        if self._at > self._blocks.size:
            self._ended = True
            there = min(max(self._blocks.size - offset, 0), stored)
            words = f"the file ends at byte {self._blocks.size}: {there} of the {stored} bytes of this member are there"
            yield self._fault("cut-data", f"{words}; readers fail here, or give it cut; {AGAIN}", at, name)
            return
        yield Member(name, start, at, offset, stored, kind, self._reached)

    def _named(self, header: Header) -> tuple[bytes, int]:
        fields = {**self._globals, **self._fields}
        name = fields.get(b"GNU.sparse.name", fields.get(b"path", header.name))
        return name, int(fields.get(b"size") or header.size)

    def _more_sparse(self, at: int) -> int:
        """How many blocks of a sparse file's map follow its header."""
        blocks, more = 0, self._blocks.take(at + 482, 1)
        while more.strip(b"\0"):
            blocks += 1
            more = self._blocks.take(at + blocks * BLOCK + 504, 1)
        return blocks

    def _extension(self, header: Header) -> Iterator[Finding]:
        """Read a long name or a pax header: it speaks of the next member, or with type g of all that follow."""
        at, offset = self._at, self._at + BLOCK
        self._start = at if self._start is None else self._start
        self._at = offset + padded(header.size)
        if self._at > self._blocks.size:
            self._ended = True
            words = f"the file ends at byte {self._blocks.size} inside a header of type {header.kind!r}; {AGAIN}"
            yield self._fault("cut-header", words, at)
            return
        if header.size > _MOST_EXTENSION:
            words = f"a header of type {header.kind!r} of {header.size} bytes is too long to be believed; {AGAIN}"
            yield self._fault("bad-extension", words, at)
            return
        data = self._blocks.take(offset, header.size)
        if header.kind == b"L":
            self._fields.setdefault(b"path", data.split(b"\0", 1)[0])
        elif header.kind != b"K":
            yield from self._pax(header, data, at)

    def _pax(self, header: Header, data: bytes, at: int) -> Iterator[Finding]:
        fields, problem = read_pax(data)
        if problem:
            words = f"a pax header is damaged: {problem}; the next member may have another name or size; {AGAIN}"
            yield self._fault("bad-extension", words, at)
        if b"path" in fields:
            fields[b"path"] = fields[b"path"].rstrip(b"/")
        if header.kind != b"g":
            self._fields = {**fields, **self._fields}
            return
        if KEPT & fields.keys():
            words = "a pax header gives all members that follow one name or size, and readers differ; pack them again"
            yield self._fault("global-pax", words, at)
        self._globals |= fields

    def _orphan(self, what: str) -> Iterator[Finding]:
        if self._start is not None:
            words = f"a header with a long name or pax fields is followed by {what}, not by a member; {AGAIN}"
            yield self._fault("bad-extension", words, self._start)
            self._forget()

    def _forget(self) -> None:
        self._start, self._fields = None, {}


def _guess(block: bytes) -> int:
    """The size that a damaged header gives, -1 if none."""
    digits = block[124:136].strip(b" \0")
    return int(digits, 8) if digits and all(48 <= digit < 56 for digit in digits) else -1  # noqa: PLR2004 - "0" to "7"
