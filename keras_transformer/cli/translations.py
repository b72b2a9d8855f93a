"""The output of `translate`: its progress on stderr, and a file to resume."""

import os
import stat
import sys
import time
from typing import IO

from keras_transformer.utils import Path, counted

SEPARATOR = b" ||| "


class StreamProgress:
    """Prints how many lines are translated: on a terminal in one line, elsewhere every minute.

    Args:
        size: Bytes of the whole input, or None if it is unknown.
        every: Seconds between two lines if stderr is not a terminal.
    """

    def __init__(self, size: int | None = None, every: float = 60.0) -> None:
        self.size = size
        self.every = every
        self.terminal = sys.stderr.isatty()
        self._lines = 0
        self._started = self._printed = time.monotonic()

    def __call__(self, lines: int, bytes_taken: int) -> None:
        """Prints it if it is time.

        Args:
            lines: How many lines have been translated since the last call.
            bytes_taken: How many bytes of the input are translated.
        """
        now = time.monotonic()
        self._lines += lines
        if not self.terminal and now - self._printed < self.every:
            return
        self._printed = now
        seconds = max(now - self._started, 1e-9)
        text = f"{counted(self._lines, 'line')} translated, {self._lines / seconds:,.0f} a second"
        if self.size:
            text += f", {100 * bytes_taken / self.size:.0f} % of the input"
        print(text, end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Ends the line on a terminal."""
        if self.terminal and self._lines:
            print(file=sys.stderr)


def size_of(descriptor: int) -> int | None:
    """Bytes of a file that is open; None of a pipe, a terminal or the like."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class UnfinishedOutput:
    """A file of translations whose writing was stopped, to append the rest to.

    Args:
        path: Of the file, which need not exist.
        n_best: None, or the number of translations of each line, as --n-best writes them; those of
            the last line are written again if some are missing.

    Attributes:
        path: As given.
        done: Number of lines of the input that are completely translated.

    Raises:
        ValueError: If it cannot be read, or holds something else.
    """

    def __init__(self, path: Path, n_best: int | None = None) -> None:
        self.path = path
        self.done = self._size = 0
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"{path} is not a file and cannot be resumed.")
        try:
            with open(path, "rb") as file:
                self._read(file, n_best)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): check it.") from error

    def open(self) -> IO[str]:
        """Opens the file to append to, without an incomplete end."""
        try:
            file = open(self.path, "a", encoding="utf-8", newline="\n")
            file.truncate(self._size)
            return file
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}.") from error

    def _read(self, file, n_best):
        """Counts the lines of the input that are done, and their bytes."""
        place = 0
        for count, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            place += len(line)
            number = line.partition(SEPARATOR)[0]
            if n_best and (number != b"%d" % self.done or line.count(SEPARATOR) < 2):
                raise ValueError(
                    f"{self.path} line {count} is not a translation of line {self.done} as "
                    f"--n-best {n_best} writes it: resume with the same options."
                )
            if count % (n_best or 1) == 0:
                self.done, self._size = self.done + 1, place
