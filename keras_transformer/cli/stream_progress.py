"""What a long translation tells on stderr."""

import os
import stat
import sys
import time

from keras_transformer.wording import counted


class StreamProgress:
    """Says how many lines are translated: on a terminal in one line, elsewhere every minute.

    Args:
        size: Bytes that there are to read in all, or None: nobody knows.
        every: Seconds between two lines where stderr is no terminal.
    """

    def __init__(self, size: int | None = None, every: float = 60.0) -> None:
        self.size = size
        self.every = every
        self.terminal = sys.stderr.isatty()
        self._lines = 0
        self._began = self._said = time.monotonic()

    def __call__(self, lines: int, bytes_taken: int) -> None:
        """Says it when it is time.

        Args:
            lines: How many lines have been translated since the last call.
            bytes_taken: How much of what there is to read is done.
        """
        now = time.monotonic()
        self._lines += lines
        if not self.terminal and now - self._said < self.every:
            return
        self._said = now
        seconds = max(now - self._began, 1e-9)
        text = f"{counted(self._lines, 'line')} translated, {self._lines / seconds:,.0f} a second"
        if self.size:
            text += f", {100 * bytes_taken / self.size:.0f} % of the input"
        print(text, end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves what a terminal shows."""
        if self.terminal and self._lines:
            print(file=sys.stderr)


def size_of(descriptor: int) -> int | None:
    """Bytes of a file that is open; None of a pipe, a terminal or the like."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None
