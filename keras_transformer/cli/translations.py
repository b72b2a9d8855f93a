"""The output of `translate`: progress on stderr, and an output file that can be resumed."""

import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import IO

from keras_transformer.translation.sentence_batches import IncomingLines
from keras_transformer.utils import Path, counted

SEPARATOR = b" ||| "
SECONDS_BETWEEN_LINES = 60  # of progress, if stderr is not a terminal


class StreamProgress:
    """Prints the number of translated lines; continuously on a terminal, else once a minute.

    Args:
        size: Size of the input in bytes, or None if unknown.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        self.terminal = sys.stderr.isatty()
        self._lines = 0
        self._started = self._printed = time.monotonic()

    def __call__(self, lines: int, bytes_taken: int) -> None:
        """Adds translated lines, and prints if enough time has passed.

        Args:
            lines: Number of lines translated since the last call.
            bytes_taken: Number of input bytes translated so far.
        """
        now = time.monotonic()
        self._lines += lines
        if not self.terminal and now - self._printed < SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        seconds = max(now - self._started, 1e-9)
        text = f"{counted(self._lines, 'line')} translated, {self._lines / seconds:,.0f} per second"
        if self.size:
            text += f", {100 * bytes_taken / self.size:.0f} % of the input"
        print(text, end="\r" if self.terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Prints the end of line on a terminal."""
        if self.terminal and self._lines:
            print(file=sys.stderr)


def file_size(descriptor: int) -> int | None:
    """Returns the size of an open file in bytes; None for a pipe or a terminal."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


class UnfinishedOutput:
    """An interrupted output file, to which the missing translations are appended.

    Args:
        path: Name of the file, which need not exist.
        n_best: Number of output lines per input line with `--n-best`, or None. If some are missing
            for the last line, all of that line are written again.
        header: Lines that the output begins with.

    Attributes:
        path: As given.
        has_header: Whether the header is complete.
        done: Number of input lines that are completely translated, the header excluded.

    Raises:
        ValueError: If the file cannot be read, or contains something else.
    """

    def __init__(self, path: Path, n_best: int | None = None, header: Sequence[str] = ()) -> None:
        self.path = path
        self.done = self._size = 0
        self.has_header = not header
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"{path} is not a file and cannot be resumed.")
        try:
            with open(path, "rb") as file:
                self._read_header(file, header)
                self._read(file, n_best)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): check it.") from error

    def skip_translated(self, lines: IncomingLines) -> int:
        """Skips the input lines that are translated; returns how many.

        Raises:
            ValueError: If the input has fewer.
        """
        if (found := lines.skip(self.done)) < self.done:
            raise ValueError(
                f"{self.path} has translations of {counted(self.done, 'line')}, but stdin has only "
                f"{found:,}: give the same input as before."
            )
        return self.done

    def open(self) -> IO[str]:
        """Removes an incomplete end, and opens the file for appending."""
        try:
            file = open(self.path, "a", encoding="utf-8", newline="\n")
            file.truncate(self._size)
            return file
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}.") from error

    def _read_header(self, file, header):
        """Compares the first lines with the header."""
        expected = "".join(f"{line}\n" for line in header).encode()
        found = file.read(len(expected))
        if found == expected:
            self.has_header, self._size = True, len(expected)
        elif not expected.startswith(found):
            raise ValueError(
                f"{self.path} does not begin with the columns {', '.join(header[0].split(chr(9)))}:"
                " resume with the same options."
            )

    def _read(self, file, n_best):
        """Counts the completely translated input lines, and their bytes in the file."""
        end = self._size
        for count, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            end += len(line)
            number = line.partition(SEPARATOR)[0]
            if n_best and (number != b"%d" % self.done or line.count(SEPARATOR) < 2):
                raise ValueError(
                    f"{self.path} line {count} must be a translation of line {self.done} in the "
                    f"format of --n-best {n_best}: resume with the same options."
                )
            if count % (n_best or 1) == 0:
                self.done, self._size = self.done + 1, end
