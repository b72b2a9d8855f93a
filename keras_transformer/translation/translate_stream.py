"""Translates lines while they come in."""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.translation.incoming_lines import IncomingLines

FIRST = 1024  # lines of the first window: the sooner it is done, the sooner one sees something
WINDOW = 4096  # of the later ones, for few cores
WINDOW_OF_CORE = 2048


def translate_stream(
    translate: Callable[..., list[Any]],
    lines: IncomingLines,
    prefixes: Iterator[str | bytes] | None = None,
    first: int = 0,
) -> Iterator[list[Any]]:
    """Translates windows of lines, each sorted by length in itself, in the order they come.

    A window is translated when it is full, or when no line has come for a moment. Nothing but speed
    depends on where windows end: what is drawn for a line follows from its number.

    Args:
        translate: As `open_translator` gives it.
        lines: `IncomingLines`.
        prefixes: What the translations begin with, one for each line; or None.
        first: Number of the first line.

    Yields:
        Lists of what `translate` returns for each line.

    Raises:
        ValueError: If there are more lines than prefixes, or fewer.
    """
    number, size, largest = first, FIRST, max(WINDOW, WINDOW_OF_CORE * (os.cpu_count() or 1))
    while window := lines.take(size):
        own = None
        if prefixes is not None:
            own = list(itertools.islice(prefixes, len(window)))
            if len(own) < len(window):
                raise ValueError(
                    f"There are {number + len(own)} prefixes, but more lines to translate: give "
                    "one for each line, an empty one where there is none."
                )
            if len(window) < size and lines.ended:
                _check_end(prefixes, number + len(window))
        yield translate(window, prefixes=own, first=number)
        number, size = number + len(window), largest
    if prefixes is not None:
        _check_end(prefixes, number)


def _check_end(prefixes, count):
    """Refuses more prefixes than lines."""
    if next(prefixes, None) is not None:
        raise ValueError(
            f"There are {count} lines to translate, but more prefixes: give one for each line."
        )
