"""Input and output formats of `translate`: plain text, JSON Lines and tab-separated values.

A format reads the text to translate from a line, and writes the line with its translation. All
other fields are copied unchanged, so that the output can be joined with other data.
"""

import collections
import json
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer.translation.sentence_batches import IncomingLines

FORMATS = ("text", "jsonl", "tsv")
FIELD, OUTPUT_FIELD = "text", "translation"  # defaults


class TextRows:
    """Plain text: a line is a text.

    Args:
        n_best: See `translate`.

    Attributes:
        numbered: `n_best` if the output has so many lines per line of the input, numbered; or None.
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
            return [join_lines(answer)]
        return [f"{number} ||| {join_lines(text)} ||| {score:.6f}" for text, _, score in answer]

    def copied(self, line: bytes) -> str | None:
        """Returns what a line of the output has before the translation; None: not of the input."""
        return None


class JsonRows(TextRows):
    """JSON Lines: a line is a JSON object; the translation becomes its last member.

    Args:
        field: Name of the member to translate, a string.
        output_field: Name of the new member: the translation, or with `n_best` a list of objects
            with the members `text`, `log_prob` and `score`.
        n_best: See `translate`.
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

    Args:
        field: Number of the column to translate, from 1; or its name in the first line.
        output_field: Name of the new column, if the columns have names.
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
        return [self.copied(line) + join_lines(answer).replace("\t", " ")]

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

    @property
    def ended(self) -> bool:
        return self._error is None and self._lines.ended

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


def join_lines(text: str) -> str:
    """Writes a text in one line, even if it contains line breaks."""
    return " ".join(text.splitlines())
