"""Formats of `translate`, and outputs that can be resumed.

A format reads the text to translate from a line, and writes the line with its translation.
"""

import collections
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import IO, Any

from keras_transformer.translation.sentences import IncomingLines
from keras_transformer.utils import Path

FORMATS = ("text", "jsonl")
FIELD, OUTPUT_FIELD = "text", "translation"  # defaults
SEPARATOR = " ||| "  # before the score
COMPARED = 64  # lines that are translated again when an output is resumed


class TextRows:
    """Plain text: a line is a text. With `n_best`, so many lines of the output belong to it."""

    def __init__(self, n_best: int | None = None) -> None:
        self.n_best = n_best
        self.lines_per_text = n_best or 1

    def read(self, line: bytes, number: int) -> bytes:
        """Returns the text of a line of the input; its number is from 0."""
        return line

    def begin(self, line: bytes, number: int) -> str:
        """Returns what the output for a line begins with."""
        return "" if self.n_best is None else f"{number} ||| "

    def write(self, line: bytes, number: int, answer: Any) -> list[str]:
        """Returns the lines of the output for a line of the input.

        The answer is the translation, or a list of `Hypothesis` with `n_best`.
        """
        if self.n_best is None:
            return [" ".join(answer.splitlines())]
        begin = self.begin(line, number)
        return [f"{begin}{' '.join(x.text.splitlines())} ||| {x.score:.6f}" for x in answer]

    def without_score(self, line: str) -> Any:
        """Returns what a line of the output says except for scores, which rounding may change."""
        return line.rsplit(SEPARATOR, 1)[0]


class JsonRows(TextRows):
    """JSON Lines: a line is a JSON object; the translation becomes its last member.

    With `n_best`, that is a list of objects with the members `text`, `log_prob` and `score`.
    """

    def __init__(self, field: str, output_field: str, n_best: int | None = None) -> None:
        super().__init__(n_best)
        self.lines_per_text = 1
        self.field = field
        self.output_field = output_field

    def read(self, line: bytes, number: int) -> bytes:
        if not line.strip():  # is copied
            return b""
        place = f"Line {number + 1} of stdin"
        try:
            row = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise ValueError(f"{place} is not valid JSON: give one object per line.") from None
        if not isinstance(row, dict) or not isinstance(row.get(self.field), str):
            wanted = f"an object with a string {self.field!r}"
            raise ValueError(f"{place} is not {wanted}: give --field.")
        if self.output_field in row:
            raise ValueError(f"{place} has {self.output_field!r}: choose another --output-field.")
        # A lone surrogate, which JSON can express, is not valid UTF-8.
        return row[self.field].encode("utf-8", "replace")

    def begin(self, line: bytes, number: int) -> str:
        # The other members are copied as they are written: parsing would change numbers.
        text = line.decode("utf-8", "replace").strip()
        if not text:
            return "\n"
        return f"{text.removesuffix('}').rstrip()}, {json.dumps(self.output_field)}: "

    def write(self, line: bytes, number: int, answer: Any) -> list[str]:
        if not line.strip():
            return [""]
        if self.n_best is not None:
            answer = [hypothesis._asdict() for hypothesis in answer]
        return [f"{self.begin(line, number)}{json.dumps(answer, ensure_ascii=False)}}}"]

    def without_score(self, line: str) -> Any:
        try:
            answer = json.loads(line)[self.output_field] if line else line
        except ValueError:
            said = f"The output has a line that is not JSON: {line!r:.60}"
            raise ValueError(f"{said}; delete it and what follows.") from None
        return [one["text"] for one in answer] if isinstance(answer, list) else answer


def make_rows(
    format: str, field: str | None, output_field: str | None, n_best: int | None
) -> TextRows:
    """Makes the reader and writer of a format from the options of `translate`."""
    if format not in FORMATS:
        raise ValueError(f"--format must be text or jsonl, received {format!r}.")
    if format == "jsonl":
        return JsonRows(field or FIELD, output_field or OUTPUT_FIELD, n_best)
    if field or output_field:
        raise ValueError("--field and --output-field need --format jsonl.")
    return TextRows(n_best)


def open_output(
    path: Path, lines: IncomingLines, rows: TextRows
) -> tuple[IO[str], int, list[tuple[bytes, list[bytes]]]]:
    """Opens an unfinished output for writing; skips the lines that it has translations of.

    Returns:
        The file, at the end of those lines, what is there being incomplete; their number; and the
        last of them with their translations.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is not a file, so it cannot be resumed.")  # reading might not end
    done = size = 0
    last: collections.deque[tuple[bytes, list[bytes]]] = collections.deque(maxlen=COMPARED)
    try:
        with open(path, "ab+") as file:
            file.seek(0)
            while written := list(itertools.islice(file, rows.lines_per_text)):
                if len(written) < rows.lines_per_text or not written[-1].endswith(b"\n"):
                    break
                line = lines.take(1)
                if not line or not written[0].startswith(rows.begin(line[0], done).encode()):
                    raise ValueError(
                        f"{path} has no translation of line {done + 1} of stdin: give the same "
                        "input and options as before."
                    )
                done, size = done + 1, size + sum(map(len, written))
                last.append((line[0], written))
            if file.seek(0, os.SEEK_END) and not done:
                raise ValueError(f"{path} has no whole translation: delete it to begin again.")
        output = open(path, "r+", encoding="utf-8", newline="\n")
        output.seek(size)
        return output, done, list(last)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from error


def check_resumed(
    path: Path,
    last: list[tuple[bytes, list[bytes]]],
    translate: Callable[..., list[list[str]]],
    prefixes: Iterator[str | bytes] | None,
    start: int,
    rows: TextRows,
) -> None:
    """Checks that the last lines before `start` have the translations that the output has.

    Rounding, which depends on the batch, may change some translations and all scores: a quarter of
    the lines may differ.
    """
    own = None if prefixes is None else list(itertools.islice(prefixes, len(last)))
    answers = translate([line for line, _ in last], own, start - len(last))
    different = sum(
        [rows.without_score(line) for line in answer]
        != [rows.without_score(line.decode().rstrip("\n")) for line in written]
        for answer, (_, written) in zip(answers, last, strict=True)
    )
    if 4 * different > sum(bool(line.strip()) for line, _ in last):
        raise ValueError(
            f"{different} of the last {len(last)} translations in {path} are not those of the same "
            "lines of stdin: give the same input and options as before."
        )
