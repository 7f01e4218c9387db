"""Count what this process holds open, to prove that something left nothing behind."""

from pathlib import Path


def open_descriptors() -> dict[str, str]:
    """Return the open descriptors of this process, with what they are open on."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = str(path.readlink())
        except FileNotFoundError:  # the one that listed the folder
            continue
    return found


def new_descriptors(before: dict[str, str]) -> dict[str, str]:
    """Return what is open now and was not before; what others closed meanwhile is not looked at."""
    return {number: target for number, target in open_descriptors().items() if before.get(number) != target}
