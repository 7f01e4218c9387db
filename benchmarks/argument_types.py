"""Types of command line arguments: what `argparse` calls to read a word, refusing a wrong one with a sentence."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def listed(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Read values between commas; one that is there twice counts once."""

    def read(text: str) -> list[T]:
        return list(dict.fromkeys(one(word.strip()) for word in text.split(",")))

    return read


def choice(values: Sequence[T]) -> Callable[[str], T]:
    """Read one of some words."""
    words = {str(value): value for value in values}

    def read(text: str) -> T:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")
        return words[text]

    return read


def whole(least: int) -> Callable[[str], int]:
    """Read a whole number that is not below the least."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0 seconds")
    return value


def out_file(text: str) -> Path:
    """Read the name of a file to write; one that cannot be written is refused before anything is measured."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; name a file in a folder that exists")
    return path
