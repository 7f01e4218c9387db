"""What StreamLoader is called with beside a batch's own description."""

import re

from stream.collate import Hooks
from stream.errors import OptionError
from stream.options import StreamOptions


def check_call(options: object, hooks: Hooks, name: object) -> StreamOptions:
    """Return the options, the default ones for None.

    Raises:
        OptionError: an argument has the wrong type; a name cannot be part of a file's name.
    """
    if options is not None and not isinstance(options, StreamOptions):
        raise OptionError("options", options, "must be a StreamOptions")
    wanted: list[tuple[str, object, str]] = [
        ("collate", hooks.collate, "a list of examples in, a batch out"),
        ("transform", hooks.transform, "an example and a torch.Generator in, an example out"),
    ]
    for option, hook, words in wanted:
        if hook is not None and not callable(hook):
            raise OptionError(option, hook, f"must be callable: {words}")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,64}", name):
        raise OptionError("name", name, "must be 1 to 64 letters, digits, dots or dashes; a checkpoint's file has it")
    return options or StreamOptions()
