"""What StreamLoader is called with beside a batch's own description."""

import re

from stream.errors import OptionError
from stream.options import StreamOptions


def check_call(options: object, collate: object, name: object) -> StreamOptions:
    """Return the options, the default ones for None.

    Raises:
        OptionError: an argument has the wrong type; a name cannot be part of a file's name.
    """
    if options is not None and not isinstance(options, StreamOptions):
        raise OptionError("options", options, "must be a StreamOptions")
    if collate is not None and not callable(collate):
        raise OptionError("collate", collate, "must be callable: a list of examples in, a batch out")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,64}", name):
        raise OptionError("name", name, "must be 1 to 64 letters, digits, dots or dashes; a checkpoint's file has it")
    return options or StreamOptions()
