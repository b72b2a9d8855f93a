"""The output of `translate`: progress on stderr, and an output file that can be resumed."""

import collections
import itertools
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from keras_transformer.cli.rows import TextRows
from keras_transformer.translation.sentence_batches import IncomingLines
from keras_transformer.utils import Path, counted

SEPARATOR = b" ||| "
SECONDS_BETWEEN_LINES = 60  # of progress, if stderr is not a terminal
COMPARED = 16  # lines of text that are translated again when an output is resumed


class StreamProgress:
    """Prints the number of translated lines; continuously on a terminal, else once a minute."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size
        self.terminal = sys.stderr.isatty()
        self._lines = 0
        self._started = self._printed = time.monotonic()

    def __call__(self, lines: int, bytes_taken: int) -> None:
        """Adds lines that were translated since the last call, and prints after enough time."""
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

    With `--n-best`, all translations of the last line are written again if some are missing.

    Attributes:
        has_header: Whether the header is complete.
        done: Number of input lines that are completely translated, the header excluded.
        last: The last of them with their translations, if the output has nothing of the input.
    """

    def __init__(self, path: Path, rows: TextRows, header: Sequence[str] = ()) -> None:
        self.path = path
        self.done = self._size = 0
        self.has_header = not header
        self.last: collections.deque[tuple[bytes, list[bytes]]] = collections.deque(maxlen=COMPARED)
        self._rows = rows
        self._header = "".join(f"{line}\n" for line in header).encode()
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"{path} is not a file and cannot be resumed.")
        try:
            with open(path, "rb") as file:
                self._read_header(file)
                self._read(file, rows.numbered)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): check it.") from error

    def skip_translated(self, lines: IncomingLines) -> tuple[int, int]:
        """Skips the input lines that are translated; returns how many, and of how many `last`."""
        count, above = 0, self._header.count(b"\n")
        with open(self.path if self.done else os.devnull, "rb") as file:
            file.seek(len(self._header))
            while taken := lines.take(min(self.done - count, 1 << 12)):
                for line in taken:
                    count += 1
                    group = [file.readline()[:-1] for _ in range(self._rows.numbered or 1)]
                    copied = self._rows.copied(line)
                    if copied is None:
                        self.last.append((line, group))
                    elif not _begins_with(group[0], copied.encode()):
                        where = f"line {count + above}"
                        raise ValueError(
                            f"{self.path} {where} is not {where} of stdin with its translation: "
                            "give the same input and options as before, or another output file."
                        )
        if count < self.done:
            raise ValueError(
                f"{self.path} has translations of {counted(self.done, 'line')}, but stdin has only "
                f"{count:,}: give the same input as before."
            )
        return self.done, len(self.last)

    def compare(
        self, translate: Callable[..., list[Any]], prefixes: Iterator[str | bytes] | None
    ) -> None:
        """Translates the `last` lines again, from whose prefixes on `prefixes` come, and compares.

        Nothing else in a text shows what it was made from. Rounding, which depends on the batch,
        may change a translation and scores, but not most translations.
        """
        if not (lines := [line for line, _ in self.last]):
            return
        first, different = self.done - len(lines), 0
        own = None if prefixes is None else list(itertools.islice(prefixes, len(lines)))
        answers = translate(lines, prefixes=own, first=first)
        for number, (answer, (line, old)) in enumerate(zip(answers, self.last, strict=True), first):
            new = [written.encode() for written in self._rows.write(line, number, answer)]
            different += _remove_scores(new) != _remove_scores(old)
        if 2 * different > sum(map(bool, lines)):
            raise ValueError(
                f"{different} of the last {counted(len(lines), 'translation')} in {self.path} are "
                "not those of the same lines of stdin: give the same input and options as before, "
                "or another output file."
            )

    def open(self) -> IO[str]:
        """Removes an incomplete end, and opens the file for appending."""
        try:
            file = open(self.path, "a", encoding="utf-8", newline="\n")
            file.truncate(self._size)
            return file
        except OSError as error:
            raise ValueError(f"{self.path} cannot be written: {error.strerror}.") from error

    def _read_header(self, file):
        """Compares the first lines with the header."""
        found = file.read(len(self._header))
        if found == self._header:
            self.has_header, self._size = True, len(found)
        elif not self._header.startswith(found):
            columns = self._header.decode().strip().replace("\t", ", ")
            raise ValueError(
                f"{self.path} does not begin with the columns {columns}: resume with the same "
                "options."
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


def _remove_scores(lines):
    return [line.rsplit(SEPARATOR, 1)[0] for line in lines]


def _begins_with(written, copied):
    """Returns whether only a translation, in which tabs are escaped or replaced, follows."""
    rest = written.removeprefix(copied)
    return written.startswith(copied) and b"\t" not in rest and bool(copied) == bool(written)
