"""One malicious or broken thing, and what it is tried with."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple


class Trial(NamedTuple):
    """What is done to a sound copy, which command is to open it, and part of what it says."""

    title: str
    break_it: Callable[[pathlib.Path], None]  # a copy of the run, or of the export
    message: str
    command: str = "translate {}"  # {} is the copy
    status: int = 2
