"""Translates lines while they come in."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.kernels import available_cores
from keras_transformer.translation.incoming_lines import IncomingLines
from keras_transformer.wording import counted

# Lines of the first window and of the later ones. At the end of each, cores wait for one another,
# and sentences are the less alike in a batch, the fewer there are to sort: by padded tokens on two
# cores, about 1 % of all of Multi30k's 29,000 lines as one, 4 % at worst, of 6,000 (not timed).
FIRST = 2048 * max(2, available_cores())
WINDOW = 4 * FIRST


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
    number, size = first, FIRST
    while window := lines.take(size):
        own = None
        if prefixes is not None:
            own = list(itertools.islice(prefixes, len(window)))
            if len(own) < len(window):
                raise ValueError(
                    f"Received {counted(number + len(own), 'prefix', 'prefixes')}, but more lines "
                    "to translate: give one for each line, an empty one where there is none."
                )
            if len(window) < size and lines.ended:
                _check_end(prefixes, number + len(window))
        yield translate(window, prefixes=own, first=number)
        number, size = number + len(window), WINDOW
    if prefixes is not None:
        _check_end(prefixes, number)


def _check_end(prefixes, count):
    """Refuses more prefixes than lines."""
    if next(prefixes, None) is not None:
        raise ValueError(
            f"Received {counted(count, 'line')} to translate, but more prefixes: give one for each "
            "line."
        )
