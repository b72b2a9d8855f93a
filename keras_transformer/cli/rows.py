"""Input and output of `translate`: formats, progress on stderr, and outputs that can be resumed.

A format reads the text to translate from a line, and writes the line with its translation. All
other fields are copied unchanged, so that the output can be joined with other data.
"""

import collections
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from keras_transformer.translation.sentences import IncomingLines
from keras_transformer.utils import Path, counted

SEPARATOR = b" ||| "
SECONDS_BETWEEN_LINES = 60  # of progress, if stderr is not a terminal
COMPARED = 16  # lines of text that are translated again when an output is resumed
FORMATS = ("text", "jsonl", "tsv")
FIELD, OUTPUT_FIELD = "text", "translation"  # defaults


class TextRows:
    """Plain text: a line is a text.

    `numbered` is `n_best` if the output has so many numbered lines per line of the input, or None.
    """

    def __init__(self, n_best: int | None = None) -> None:
        self.n_best = self.numbered = n_best

    def read_header(self, lines: IncomingLines) -> list[str]:
        """Reads the header, if there is one; returns the header of the output."""
        return []

    def read(self, line: bytes) -> bytes:
        """Returns the text of a line; a ValueError says why it has none."""
        return line

    def write(self, line: bytes, number: int, answer: Any) -> list[str]:
        """Returns the lines of the output for a line of the input and its number, from 0.

        The answer is the translation, or a list of `Hypothesis` with `n_best`.
        """
        if self.n_best is None:
            return [" ".join(answer.splitlines())]
        return [
            f"{number} ||| {' '.join(text.splitlines())} ||| {score:.6f}"
            for text, _, score in answer
        ]

    def copied(self, line: bytes) -> str | None:
        """Returns what a line of the output has before the translation; None: not of the input."""
        return None


class JsonRows(TextRows):
    """JSON Lines: a line is a JSON object; the translation becomes its last member.

    With `n_best`, that is a list of objects with the members `text`, `log_prob` and `score`.
    """

    def __init__(self, field: str, output_field: str, n_best: int | None = None) -> None:
        super().__init__(n_best)
        self.numbered = None
        self.field = field
        self.output_field = output_field

    def read(self, line: bytes) -> bytes:
        if not line.strip():  # is copied
            return b""
        try:
            row = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise ValueError(
                "is not valid JSON: --format jsonl needs one object per line."
            ) from None
        if not isinstance(row, dict) or not isinstance(row.get(self.field), str):
            raise ValueError(f"is not a JSON object with a string {self.field!r}: give --field.")
        if self.output_field in row:
            raise ValueError(f"already has {self.output_field!r}: choose another --output-field.")
        # A lone surrogate, which JSON can express, is not valid UTF-8.
        return row[self.field].encode("utf-8", "replace")

    def write(self, line: bytes, number: int, answer: Any) -> list[str]:
        if not (copied := self.copied(line)):
            return [""]
        if self.n_best is not None:
            answer = [hypothesis._asdict() for hypothesis in answer]
        return [f"{copied}{json.dumps(answer, ensure_ascii=False)}}}"]

    def copied(self, line: bytes) -> str:
        # The other members are copied as they are written: parsing would change numbers.
        text = line.decode("utf-8", "replace").strip()
        return text and f"{text.removesuffix('}').rstrip()}, {json.dumps(self.output_field)}: "


class TableRows(TextRows):
    """Tab-separated values without quoting; the translation becomes the last column.

    `field` is the number of the column to translate, from 1, or its name in the first line.
    """

    def __init__(self, field: str, output_field: str) -> None:
        super().__init__()
        self.field = field
        self.output_field = output_field
        self._has_names = not field.isdecimal()
        self._column = 0 if self._has_names else int(field) - 1
        if self._column == -1:
            raise ValueError("--field must be the number of a column from 1, received 0.")

    def read_header(self, lines: IncomingLines) -> list[str]:
        if not self._has_names or not (header := lines.take(1)):
            return []
        names = header[0].decode("utf-8", "replace").split("\t")
        if self.field not in names:
            raise ValueError(
                f"The first line of stdin has no column {self.field!r}, but {', '.join(names)!r}: "
                "give --field a name, or a number if the columns have no names."
            )
        if self.output_field in names:
            raise ValueError(
                f"The table already has a column {self.output_field!r}: choose another "
                "--output-field."
            )
        self._column = names.index(self.field)
        return ["\t".join([*names, self.output_field])]

    def read(self, line: bytes) -> bytes:
        columns = line.split(b"\t")
        if len(columns) <= self._column:
            raise ValueError(
                f"has {len(columns)} of at least {self._column + 1} columns, which are separated "
                "by tabs."
            )
        return columns[self._column]

    def write(self, line: bytes, number: int, answer: Any) -> list[str]:
        return [self.copied(line) + " ".join(answer.splitlines()).replace("\t", " ")]

    def copied(self, line: bytes) -> str:
        return line.decode("utf-8", "replace") + "\t"


def make_rows(
    format: str, field: str | None, output_field: str | None, n_best: int | None
) -> TextRows:
    """Makes the reader and writer of a format from the options of `translate`."""
    if format not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}, received {format!r}.")
    if format == "text":
        if field or output_field:
            raise ValueError("--field and --output-field need --format jsonl or tsv.")
        return TextRows(n_best)
    if format == "jsonl":
        return JsonRows(field or FIELD, output_field or OUTPUT_FIELD, n_best)
    if n_best is not None:
        raise ValueError("--n-best needs --format text or jsonl: a table has one row per line.")
    return TableRows(field or FIELD, output_field or OUTPUT_FIELD)


class RowReader:
    """Takes the texts of lines, and keeps the lines until their translations are formatted.

    An invalid line raises when it is reached: those before it are translated first. `first` is the
    number of lines before them, for errors.
    """

    def __init__(self, lines: IncomingLines, rows: TextRows, first: int = 0) -> None:
        self._taken: collections.deque[bytes] = collections.deque()
        self._lines = lines
        self._rows = rows
        self._count = first
        self._error: ValueError | None = None

    @property
    def bytes_taken(self) -> int:
        return self._lines.bytes_taken

    def take(self, max_lines: int) -> list[bytes]:
        """Returns up to `max_lines` texts, see `IncomingLines.take`."""
        if self._error:
            raise self._error
        texts: list[bytes] = []
        for line in self._lines.take(max_lines):
            self._count += 1
            try:
                texts.append(self._rows.read(line))
            except ValueError as error:
                self._error = ValueError(f"Line {self._count} of stdin {error}")
                if not texts:
                    raise self._error from None
                break
            self._taken.append(line)
        return texts

    def format_answers(self, answers: Sequence[Any], first: int) -> Iterator[str]:
        """Yields the lines of the output for the next lines; `first` is the number of the first."""
        for number, answer in enumerate(answers, first):
            yield from self._rows.write(self._taken.popleft(), number, answer)


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
