"""Translates files in shards: what on_apache_beam.py and on_spark.py run on every worker.

Needs TensorFlow and tensorflow-text, for Parquet also pyarrow; nothing of keras_transformer. Files
are opened by `tf.io.gfile`: paths may be local, or begin with gs://, where all workers see them.

A file is read in shards of some thousand rows. A worker translates a shard in batches of similar
length and writes the result into OUTPUT/_unfinished/FILE. Once all shards of a file are there, they
are concatenated into OUTPUT/FILE. A second run continues with the missing shards.
"""

import argparse
import collections
import dataclasses
import gzip
import io
import json
import math
import os
import sys
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow leaves it off for AVX2

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizers' ops

UNFINISHED, ERROR, OPTIONS = "_unfinished", "error", "options.json"
# What decides the content of the shards.
DECISIVE = ("model", "signature", "format", "field", "target_field", "output_field", "shard_rows")
SIGNATURES = ("serving_default", "beam", "score")
FORMATS = ("text", "jsonl", "parquet")
UNREADABLE = (OSError, EOFError, ValueError, zlib.error, tf.errors.OpError)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of both programs; the help is in `parse_arguments`."""

    model: str
    input: tuple[str, ...]
    output: str
    signature: str = "serving_default"
    format: str = "text"
    field: str = "text"
    target_field: str = "target"
    output_field: str = "translation"
    shard_rows: int = 5000
    batch_rows: int = 256
    batch_bytes: int = 1 << 16
    threads: int = 1

    def unfinished(self, path: str, *parts: str) -> str:
        """Returns the directory of a file's finished shards, or a path in it."""
        return "/".join([self.output.rstrip("/"), UNFINISHED, os.path.basename(path), *parts])

    def finished(self, path: str) -> str:
        """Returns the path of a file's translation."""
        return f"{self.output.rstrip('/')}/{os.path.basename(path)}"


# (path of a file, number of a shard, its rows: lines, or a table in Arrow's IPC format). A plain
# tuple, because the engines' workers cannot import this module to unpickle a class.
Shard: TypeAlias = tuple[str, int, Any]


def parse_arguments(description: str, words: Sequence[str] | None = None) -> tuple[Options, list]:
    """Parses the command line.

    Returns:
        The options, and the words that are not options of ours but may be the engine's.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, help="version directory of an export")
    add("--input", required=True, nargs="+", help="files to translate, or patterns such as 'in/*'")
    add("--output", required=True, help="directory for files of the same names")
    add("--signature", default="serving_default", choices=SIGNATURES, help="of the export")
    add("--format", default="text", choices=FORMATS, help="of the files; *.gz is decompressed")
    add("--field", default="text", help="field to translate; with score, the source")
    add("--target-field", default="target", help="with score, the translation to score")
    add("--output-field", default="translation", help="new field")
    add("--shard-rows", type=int, default=5000, help="rows that a worker takes at a time")
    add("--batch-rows", type=int, default=256, help="maximum number of rows in a batch")
    add("--batch-bytes", type=int, default=1 << 16, help="maximum of rows x longest row in bytes")
    add("--threads", type=int, default=1, help="threads of each process")
    known, rest = parser.parse_known_args(words)
    options = Options(**vars(known) | {"input": tuple(known.input)})
    for name in ("shard_rows", "batch_rows", "batch_bytes", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not tf.io.gfile.exists(f"{options.model.rstrip('/')}/saved_model.pb"):
        parser.error(f"{options.model} has no saved_model.pb: give the version directory")
    return options, rest


def find_inputs(options: Options) -> list[str]:
    """Lists the files that are not translated yet, and prepares the output directory.

    Raises:
        ValueError: If there are none, two have the same name, or the output was made with other
            options.
    """
    paths = [path for pattern in options.input for path in sorted(tf.io.gfile.glob(pattern))]
    names = [os.path.basename(path) for path in paths]
    if not paths:
        raise ValueError(f"{' '.join(options.input)} matches no file: check the pattern.")
    if len(set(names)) < len(names):
        name = collections.Counter(names).most_common(1)[0][0]
        raise ValueError(f"Two input files are named {name}: translate them separately.")
    kept = {name: getattr(options, name) for name in DECISIVE}
    path = f"{options.output.rstrip('/')}/{UNFINISHED}/{OPTIONS}"
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            before = json.loads(file.read())
        if before != kept:
            raise ValueError(
                f"{options.output} has files of a run with other options ({before}): give those, "
                "or choose another --output."
            )
    else:
        tf.io.gfile.makedirs(os.path.dirname(path))
        write_atomically(path, lambda file: file.write(json.dumps(kept).encode()))
    return [path for path in paths if not tf.io.gfile.exists(options.finished(path))]


def write_atomically(path: str, write: Callable[[Any], Any]) -> None:
    """Calls `write` with a temporary file, which then gets its name."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with tf.io.gfile.GFile(temporary, "wb") as file:
        write(file)
    tf.io.gfile.rename(temporary, path, overwrite=True)


# Reading.


def read_shards(path: str, options: Options) -> Iterator[Shard]:
    """Yields the shards of a file that are not translated yet, then (path, number of shards, None).

    If the file cannot be read, writes the reason next to its shards instead of the latter.
    """
    tf.io.gfile.makedirs(options.unfinished(path))
    number = 0
    try:
        for rows in (_read_table if options.format == "parquet" else _read_lines)(path, options):
            if not tf.io.gfile.exists(options.unfinished(path, f"{number}")):
                yield path, number, rows
            number += 1
        yield path, number, None
    except UNREADABLE as error:
        reason = f"{path} cannot be read: {' '.join(str(error).split())}"
        write_atomically(options.unfinished(path, ERROR), lambda file: file.write(reason.encode()))


def _read_lines(path, options):
    with tf.io.gfile.GFile(path, "rb") as raw:
        file = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
        rows: list[bytes] = []
        for number, line in enumerate(file):
            if number == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            rows.append(line.removesuffix(b"\n").removesuffix(b"\r"))
            if len(rows) == options.shard_rows:
                yield rows
                rows = []
        if rows:
            yield rows


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


def _read_table(path, options):
    import pyarrow
    import pyarrow.parquet

    with tf.io.gfile.GFile(path, "rb") as file:
        table = pyarrow.parquet.ParquetFile(_Stream(file))
        for name in (options.field, *[options.target_field] * (options.signature == "score")):
            if name not in table.schema_arrow.names:
                raise ValueError(f"it has no column {name!r}, but {table.schema_arrow.names}")
        for batch in table.iter_batches(options.shard_rows):
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield sink.getvalue().to_pybytes()


# Translating.


class Model:
    """A signature of an export, loaded once per process."""

    def __init__(self, options: Options) -> None:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(options.threads)
            tf.config.threading.set_inter_op_parallelism_threads(options.threads)
        except RuntimeError:  # TensorFlow has started in this process
            pass
        self._options = options
        self._loaded = tf.saved_model.load(options.model)  # owns what the signature needs
        signatures = self._loaded.signatures
        if options.signature not in signatures:
            raise ValueError(
                f"{options.model} has no signature {options.signature}, but {sorted(signatures)}: "
                "export the run again with it."
            )
        self._function = signatures[options.signature]

    def __call__(self, *texts: Sequence[bytes]) -> list[tuple]:
        """Translates texts in batches of similar length.

        Args:
            *texts: The sources; with `score` also the targets.

        Returns:
            For each text (translation, log_prob), with `score` (log_prob, number of tokens).
        """
        names = ("source", "target") if self._options.signature == "score" else ("text",)
        outputs = ("log_prob", "tokens") if len(names) == 2 else ("text", "log_prob")
        rows = list(zip(*texts, strict=True))
        sizes = [sum(map(len, row)) for row in rows]
        found: list[Any] = [None] * len(rows)
        for batch in self._batches(sizes):
            inputs = {
                name: tf.constant([rows[row][column] for row in batch], tf.string)
                for column, name in enumerate(names)
            }
            answer = self._function(**inputs)
            columns = [answer[name].numpy() for name in outputs]
            if self._options.signature == "beam":  # the best of N
                columns = [column[:, 0] for column in columns]
            for row, values in zip(batch, zip(*columns, strict=True), strict=True):
                found[row] = tuple(x if type(x) is bytes else x.item() for x in values)
        return found

    def _batches(self, sizes):
        """Yields the indices of rows of similar size: no text has more tokens than bytes."""
        batch: list[int] = []
        for row in sorted(range(len(sizes)), key=sizes.__getitem__):
            too_large = (len(batch) + 1) * max(sizes[row], 1) > self._options.batch_bytes
            if batch and (too_large or len(batch) == self._options.batch_rows):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch


def translate_shard(shard: Shard, model: Model, options: Options) -> tuple[str, int]:
    """Translates a shard and writes it; returns the path of its file and its number."""
    path, number, rows = shard
    format_rows = {"text": _text_rows, "jsonl": _json_rows, "parquet": _table_rows}[options.format]
    content = format_rows(rows, model, options)
    part = options.unfinished(path, f"{number}")
    write_atomically(part, lambda file: file.write(content))
    return path, number


def _text_rows(lines, model, options):
    if options.signature == "score":  # source, tab, target; the output has a third column
        columns = [line.partition(b"\t")[::2] for line in lines]
        scores = model(*zip(*columns, strict=True))
        # An empty row, which has no tokens, would have the best score.
        values = [
            b"%.6f" % (log_prob / tokens if tokens else -math.inf) for log_prob, tokens in scores
        ]
        rows = [b"\t".join(row) for row in zip(lines, values, strict=True)]
    else:
        rows = [b" ".join(text.splitlines()) for text, _ in model(lines)]
    return b"".join(row + b"\n" for row in rows)


def _json_rows(lines, model, options):
    """Adds members to JSON objects. Invalid lines are copied: they are no reason to stop."""
    names = [options.field, *[options.target_field] * (options.signature == "score")]
    rows, valid = list(lines), []
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
            texts = [row[name].encode("utf-8", "replace") for name in names]
            valid.append((number, texts))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    new = ("log_prob", "tokens") if len(names) == 2 else (options.output_field, "log_prob")
    answers = model(*zip(*[texts for _, texts in valid], strict=True)) if valid else []
    for (number, _), answer in zip(valid, answers, strict=True):
        added = {
            name: value.decode() if type(value) is bytes else value
            for name, value in zip(new, answer, strict=True)
        }
        # The other members are copied as they are written: parsing would change numbers.
        members = json.dumps(added, ensure_ascii=False)[1:].encode()
        rows[number] = lines[number].strip().removesuffix(b"}").rstrip() + b", " + members
    return b"".join(row + b"\n" for row in rows)


def _table_rows(content, model, options):
    """Adds columns to a table; a null stays null."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.ipc.open_stream(content).read_all()
    names = [options.field, *[options.target_field] * (options.signature == "score")]
    columns = [table[name].to_pylist() for name in names]
    valid = [row for row, texts in enumerate(zip(*columns, strict=True)) if None not in texts]
    texts = [[column[row] for row in valid] for column in columns]
    encoded = [[x if type(x) is bytes else str(x).encode() for x in column] for column in texts]
    added: list[list[Any]] = [[None] * len(table), [None] * len(table)]
    for row, answer in zip(valid, model(*encoded), strict=True):
        for column, value in zip(added, answer, strict=True):
            column[row] = value.decode() if type(value) is bytes else value
    text, log_prob, tokens = pyarrow.string(), pyarrow.float32(), pyarrow.int32()
    new = {options.output_field: text, "log_prob": log_prob}
    if len(names) == 2:
        new = {"log_prob": log_prob, "tokens": tokens}
    for (name, kind), values in zip(new.items(), added, strict=True):
        table = table.append_column(name, pyarrow.array(values, kind))
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


# Finishing.


def finish_file(path: str, count: int, options: Options) -> None:
    """Concatenates the shards of a file, if all are there, and removes them."""
    parts = [options.unfinished(path, f"{number}") for number in range(count)]
    if not all(map(tf.io.gfile.exists, parts)):
        return
    write_atomically(options.finished(path), lambda file: _concatenate(file, path, parts, options))
    tf.io.gfile.rmtree(options.unfinished(path))


def _concatenate(file, path, parts, options):
    if options.format == "parquet":
        _concatenate_tables(file, path, parts)
        return
    for part in parts or [None]:
        content = b""
        if part:
            with tf.io.gfile.GFile(part, "rb") as source:
                content = source.read()
        # Compressed members may be concatenated.
        file.write(gzip.compress(content) if path.endswith(".gz") else content)


def _concatenate_tables(file, path, parts):
    import pyarrow
    import pyarrow.parquet

    writer = None
    for part in parts:
        with tf.io.gfile.GFile(part, "rb") as source:
            table = pyarrow.parquet.read_table(pyarrow.BufferReader(source.read()))
        writer = writer or pyarrow.parquet.ParquetWriter(_Stream(file), table.schema)
        writer.write_table(table)
    if writer:
        writer.close()
    else:  # without rows
        with tf.io.gfile.GFile(path, "rb") as source:
            file.write(source.read())


def exit_with_report(paths: Sequence[str], options: Options) -> None:
    """Names the files that were not finished, and exits with 1 if there are any."""
    failed = 0
    for path in paths:
        if not tf.io.gfile.exists(options.finished(path)):
            failed += 1
            reason = f"{path} is not finished: run the same command again."
            if tf.io.gfile.exists(error := options.unfinished(path, ERROR)):
                with tf.io.gfile.GFile(error) as file:
                    reason = file.read()
                tf.io.gfile.remove(error)
            print(reason, file=sys.stderr)
    print(f"{len(paths) - failed} of {len(paths)} files translated.", file=sys.stderr)
    sys.exit(1 if failed else 0)
