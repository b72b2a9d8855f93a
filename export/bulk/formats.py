"""The formats of files: what is read of them, and what is written with a model's answers.

Part of shards.py: `options` are its `Options`.
"""

import gzip
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

FORMATS = ("text", "jsonl", "parquet")
COMPRESSED = (".7z", ".bz2", ".lz4", ".xz", ".zip", ".zst")  # what is not read, unlike .gz


class NoText(ValueError):
    """A line has nothing to translate."""


def is_compressed(path: str) -> bool:
    """Returns whether a file is compressed by gzip, by its name."""
    return path.lower().endswith(".gz")


def read_rows(path: str, options: Any) -> Iterator[Any]:
    """Yields up to `shard_rows` rows at a time: a list of lines, or a table as Parquet."""
    if options.format == "parquet":
        yield from _read_tables(path, options)
        return
    rows: list[bytes] = []
    for line in _iterate_lines(path):
        rows.append(line)
        if len(rows) == options.shard_rows:
            yield rows
            rows = []
    if rows:
        yield rows


def check_rows(path: str, options: Any) -> tuple[int, str]:
    """Returns how many lines can neither be translated nor copied, and what is wrong with one."""
    failed, reason = 0, ""
    if options.format == "parquet" or (options.format, len(options.fields)) == ("text", 1):
        return failed, reason
    for number, line in enumerate(_iterate_lines(path), 1):
        try:
            _find_texts(line, options)
        except ValueError as error:
            if not (options.copy_invalid and isinstance(error, NoText)):
                failed, reason = failed + 1, reason or f"Line {number} of {path} {error}"
    return failed, reason


def translate_rows(rows: Any, model: Any, options: Any) -> tuple[bytes, int, int]:
    """Translates or scores rows.

    Args:
        rows: See `read_rows`.
        model: Function of lists of texts that returns the values of `new_fields` for each text.
        options: `Options`.

    Returns:
        What is written, the number of translated rows, and the number of copied ones.
    """
    if options.format == "parquet":
        content, count = _translate_table(rows, model, options)
        return content, count, 0
    texts, copied = {}, 0
    for number, line in enumerate(rows):
        try:
            found = _find_texts(line, options)
        except NoText:
            if not options.copy_invalid:
                raise
            copied += 1
        else:
            if found:
                texts[number] = found
    answers = model(*zip(*texts.values(), strict=True)) if texts else []
    written = list(rows)
    for number, answer in zip(texts, answers, strict=True):
        written[number] = _write_line(rows[number], answer, options)
    return b"".join(row + b"\n" for row in written), len(rows) - copied, copied


# Lines.


def _iterate_lines(path):
    with tf.io.gfile.GFile(path, "rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if is_compressed(path) else raw
        for number, line in enumerate(file):
            if number == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _find_texts(line, options):
    """Returns the texts of a line for the model; None for a blank line of JSON, which is copied."""
    if options.format == "text":
        texts = line.split(b"\t") if len(options.fields) == 2 else [line]
        if len(texts) != len(options.fields):
            raise NoText(f"has {len(texts)} of 2 columns: expected source, tab, target.")
        return texts
    if not line.strip():
        return None
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise NoText("is not valid JSON: --format jsonl needs one object per line.") from None
    for option, name in zip(("--field", "--target-field"), options.fields, strict=False):
        if not isinstance(row, dict) or not isinstance(row.get(name), str):
            raise NoText(f"is not a JSON object with a string {name!r}: give {option}.")
    _check_new_fields(row, options)
    # A lone surrogate, which JSON can express, is not valid UTF-8.
    return [row[name].encode("utf-8", "replace") for name in options.fields]


def _check_new_fields(names, options):
    for name in options.new_fields:
        if name in names:
            what = "choose another --output-field" if name == options.output_field else "rename it"
            raise ValueError(f"already has {name!r}: {what}.")


def _write_line(line, answer, options):
    """Returns a line of the output: the translation, or the line with what is added."""
    values = [x.decode("utf-8", "replace") if type(x) is bytes else x for x in answer]
    if options.format == "jsonl":
        # The other members are copied as they are written: parsing would change numbers.
        text = line.decode("utf-8", "replace").strip().removesuffix("}").rstrip()
        added = json.dumps(dict(zip(options.new_fields, values, strict=True)), ensure_ascii=False)
        return f"{text}, {added[1:]}".encode()
    if options.signature == "score":
        log_prob, tokens = values
        # An empty row, which has no tokens, would have the best score.
        return b"%b\t%.6f" % (line, log_prob / tokens if tokens else -math.inf)
    return " ".join(values[0].splitlines()).encode()


# Tables.


class _Stream(io.RawIOBase):
    """A `GFile` with the interface of Python's files, as pyarrow needs."""

    def __init__(self, file: tf.io.gfile.GFile) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._file.write(bytes(content))
        return len(content)

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()


def _read_tables(path, options):
    import pyarrow
    import pyarrow.parquet

    with tf.io.gfile.GFile(path, "rb") as file:
        table = pyarrow.parquet.ParquetFile(_Stream(file))
        _check_columns(table.schema_arrow, options)
        schema, empty = table.schema_arrow, True
        for batch in table.iter_batches(options.shard_rows):
            empty = False
            yield _write_table(pyarrow.Table.from_batches([batch]))
        if empty:  # its columns count
            yield _write_table(schema.empty_table())


def _check_columns(schema, options):
    import pyarrow

    for name in options.fields:
        if (count := schema.names.count(name)) != 1:
            raise ValueError(f"it has {count} columns {name!r} among {', '.join(schema.names)}.")
        kind = schema.field(name).type
        values = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not (pyarrow.types.is_string(values) or pyarrow.types.is_large_string(values)):
            raise ValueError(f"its column {name!r} has the type {kind}, expected strings.")
    try:
        _check_new_fields(schema.names, options)
    except ValueError as error:
        raise ValueError(f"it {error}") from None


def _write_table(table):
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def _translate_table(content, model, options):
    """Adds columns to a table; a null stays null. Returns the table and its number of rows."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    columns = [table[name].to_pylist() for name in options.fields]
    valid = [row for row, texts in enumerate(zip(*columns, strict=True)) if None not in texts]
    texts = [[column[row].encode() for row in valid] for column in columns]
    added: list[list[Any]] = [[None] * len(table), [None] * len(table)]
    for row, answer in zip(valid, model(*texts), strict=True):
        for column, value in zip(added, answer, strict=True):
            column[row] = value.decode() if type(value) is bytes else value
    kinds = {"log_prob": pyarrow.float32(), "tokens": pyarrow.int32()}
    for name, values in zip(options.new_fields, added, strict=True):
        kind = kinds.get(name, pyarrow.string())
        table = table.append_column(name, pyarrow.array(values, kind))
    return _write_table(table), len(table)


# Joining.


def join(file: Any, parts: Iterator[bytes], path: str, options: Any) -> None:
    """Writes the parts of a file into one file."""
    if options.format == "parquet":
        _join_tables(file, parts)
        return
    compress = gzip.compress if is_compressed(path) else bytes
    file.write(compress(b""))  # a file without lines is one, too
    for content in parts:
        file.write(compress(content))  # compressed members may be concatenated


def _join_tables(file, parts):
    import pyarrow
    import pyarrow.parquet

    writer = None
    for content in parts:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
        writer = writer or pyarrow.parquet.ParquetWriter(_Stream(file), table.schema)
        writer.write_table(table)
    if writer:
        writer.close()
