"""What may be found wrong with a shard: one table of codes, one form for a finding. Pure.

An *error* is data that some reader loses, misreads or stops at; a *warning* reads well but is likely not meant.

| code | severity | what it is |
|---|---|---|
| `empty-file` | error | the file has no bytes |
| `compressed` | error | a gzip, zstd, bzip2, xz, lz4, zip or 7z file in place of a plain tar |
| `not-a-tar` | error | the file does not begin with a tar header |
| `only-zeros` | error | a file of zero bytes, as a failed download leaves it |
| `bad-header` | error | a header's checksum or one of its fields is wrong |
| `cut-header` | error | the file ends inside a header |
| `cut-data` | error | the file ends inside a member |
| `missing-end` | error | the file ends behind a member, without the zero blocks of a tar's end |
| `short-end` | warning | the file ends inside the two zero blocks of its end |
| `data-after-end` | error | behind a zero block, which ends a tar, there is more |
| `unreached-members` | error | members behind a fault that readers stop at |
| `bad-extension` | error | a GNU long name or pax header that is too long, damaged, or that no member follows |
| `global-pax` | error | a pax header for all members gives them one name or size |
| `ambiguous-name` | warning | the bytes of a name prefix in a header that is not POSIX USTAR |
| `link` | error | a hard or symbolic link |
| `directory` | warning | a directory |
| `device` | warning | a device or FIFO |
| `sparse` | error | a sparse file |
| `multi-volume` | error | the rest of a file that began in another archive |
| `unknown-type` | error | a member of a type that POSIX does not know |
| `no-name` | error | a member without a name |
| `unsafe-name` | error | an absolute name, or one that leads out of its folder |
| `name-nul` | error | a zero byte inside a name |
| `name-not-utf8` | error | a name that is not UTF-8 |
| `no-suffix` | warning | a name without a suffix |
| `meta-member` | warning | a name that webdataset takes for its own metadata |
| `dot-in-folder` | warning | a dot in a folder of a name |
| `dot-slash` | warning | a name that begins with `./` |
| `upper-suffix` | warning | a suffix with upper-case letters |
| `name-rule` | warning | a key or suffix that our own shards may not have |
| `no-members` | warning | a sound tar without a member |
| `no-samples` | error | members, and no sample among them |
| `duplicate-key` | error | two samples of a shard have one key |
| `split-sample` | error | the parts of a key are not adjacent |
| `duplicate-part` | error | a sample has a suffix twice |
| `half-sample` | error | a sample lacks a part that most samples of its shard have |
| `empty-image` | error | an image of 0 bytes |
| `empty-part` | warning | another part of 0 bytes |
| `key-in-two-shards` | error | samples of two shards have one key |
| `bad-image` | error | an image that does not decode (`--decode`) |
| `not-decoded` | warning | an image too large to be tried (`--decode`) |
| `unreadable` | error | the store cannot read the file |
| `missing-file` | error | a file that is asked for, or that a manifest lists, is not there |
| `surplus-file` | warning | a shard, index or unfinished file that the manifest does not list |
| `bad-manifest` | error | a manifest that cannot be trusted |
| `bad-index` | error | an index that cannot be trusted, or that is not the manifest's |
| `wrong-size` | error | a shard's size is not that of manifest or index |
| `wrong-rows` | error | the samples or parts that the scan finds are not those of the index |
| `wrong-checksum` | error | the bytes of a part are not those that were packed |
| `wrong-digest` | error | the bytes of a shard are not those that were packed |
"""

from collections import Counter
from typing import Literal

import msgspec

Severity = Literal["error", "warning"]
WARNINGS = frozenset(
    (
        *("short-end", "ambiguous-name", "directory", "device", "no-suffix", "meta-member", "dot-in-folder"),
        *("dot-slash", "upper-suffix", "name-rule", "no-members", "empty-part", "not-decoded", "surplus-file"),
    )
)
"""The codes of warnings; all others are errors."""
_MOST_ERRORS = 10
"""How many findings of one error a shard lists; of a warning it lists one."""
_MOST_WORDS = 1000  # characters; a decoder may say anything


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a file.

    `code` is one of the table above; `url` is the file, `byte` the place in it (None: the whole file), `name` the
    member or key in printable characters ("" where there is none); `more` counts the same findings of this file that
    are not listed.
    """

    code: str
    severity: Severity
    url: str
    byte: int | None
    name: str
    words: str
    more: int = 0

    def line(self) -> str:
        """Return the finding as one line of text."""
        place = "" if self.byte is None else f" byte {self.byte}"
        name = f" {self.name}" if self.name else ""
        more = f" (and {self.more} more of this in the file)" if self.more else ""
        return f"{self.severity} {self.code} {self.url}{place}{name}: {self.words}{more}"


def find(code: str, url: str, words: str, *, byte: int | None = None, name: str | bytes = "") -> Finding:
    """Make a finding; `name` and `words` may have any characters, which are shown in printable ones."""
    severity: Severity = "warning" if code in WARNINGS else "error"
    return Finding(
        code=code, severity=severity, url=url, byte=byte, name=shown(name), words=shown(words, most=_MOST_WORDS)
    )


def shown(name: str | bytes, *, most: int = 200) -> str:
    """Return a name in at most `most` printable characters, the others escaped."""
    text = name if isinstance(name, str) else name[: 4 * most].decode(errors="surrogateescape")
    cut = "..." if len(text) > most or (isinstance(name, bytes) and len(name) > 4 * most) else ""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text[:most]) + cut


def _escaped(letter: str) -> str:
    byte = ord(letter) - 0xDC00  # as the byte that is no UTF-8 was decoded
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else letter.encode("unicode_escape", "surrogatepass").decode()  # noqa: PLR2004


class Findings:
    """The findings of one file: all codes, of each no more than fit a report; the others are counted."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Keep a finding, or count it."""
        self._counts[finding.code] += 1
        if self._counts[finding.code] <= (_MOST_ERRORS if finding.severity == "error" else 1):
            self._kept.append(finding)

    def count(self, code: str, more: int) -> None:
        """Count findings of a code that are not to be listed, behind one that is."""
        self._counts[code] += more

    def listed(self) -> list[Finding]:
        """Return what was kept in the order of bytes; the last finding of a code counts those that were not."""
        kept = sorted(self._kept, key=lambda finding: -1 if finding.byte is None else finding.byte)
        last = {finding.code: place for place, finding in enumerate(kept)}
        shown_of = Counter(finding.code for finding in kept)
        for code, place in last.items():
            if self._counts[code] > shown_of[code]:
                kept[place] = msgspec.structs.replace(kept[place], more=self._counts[code] - shown_of[code])
        return kept
