"""What readers make of a member's name: (code, words) for each thing that is likely not meant. Pure."""

from collections.abc import Iterator

from shards.errors import NameRuleError
from shards.grouped import is_meta, key_and_suffix, text_of
from shards.members import Member
from shards.sample import check_key, check_suffix, split_name

_OWN = "our packer would refuse it, so pack it under another name before training by index"


def check_name(member: Member) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the name of a member, errors first."""
    name = text_of(member)
    if not name.strip("/"):
        yield "no-name", "it has no name, so readers skip it or fail; pack it again under a name"
        return
    yield from _unsafe(member, name)
    if not member.regular:
        return
    if is_meta(name):
        yield "meta-member", "webdataset takes names such as __this__ for its own and skips the member; rename it"
        return
    split = key_and_suffix(name)
    if split is None:
        yield (
            "no-suffix",
            "webdataset skips a name without a suffix, without a word; call it KEY.SUFFIX or leave it out",
        )
        return
    yield from _odd(name)


def _unsafe(member: Member, name: str) -> Iterator[tuple[str, str]]:
    if name.startswith("/") or ".." in name.split("/"):
        yield "unsafe-name", "unpacked, it lands outside its folder; readers of shards keep it in the key; rename it"
    if "\0" in name:
        yield "name-nul", "there is a zero byte in its name, where some readers end it and others do not; rename it"
    if member.name is None:
        yield "name-not-utf8", "its name is not UTF-8: keys come with broken characters, or readers fail; rename it"


def _odd(name: str) -> Iterator[tuple[str, str]]:
    folder, _, last = name.rpartition("/")
    suffix = last.partition(".")[2]
    if name.startswith("./"):
        yield "dot-slash", "webdataset keeps ./ in the key, so keys are not those that you look for; tar without it"
    elif any("." in part for part in folder.split("/") if part not in (".", "..")):
        yield "dot-in-folder", "readers that split a name at its first dot take this for another key; rename the folder"
    if suffix != suffix.lower():
        yield "upper-suffix", "webdataset makes the suffix lower case, other readers do not; write it in lower case"
    key, suffix = split_name(name)
    try:
        check_key(key)
        check_suffix(suffix.lower())
    except NameRuleError as exc:
        yield "name-rule", f"{exc.problem}; webdataset reads it, but {_OWN}"
