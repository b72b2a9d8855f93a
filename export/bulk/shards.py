"""Translates files in shards: what on_apache_beam.py and on_spark.py run on every worker.

Needs TensorFlow and tensorflow-text, for Parquet also pyarrow; nothing of keras_transformer. Files
are opened by `tf.io.gfile`: paths may be local, or begin with gs://, where all workers see them.

A file is read in shards of some thousand rows. A worker translates a shard in batches of similar
length and writes the result into OUTPUT/_state/shards/FILE. Once all shards of a file are there,
they are concatenated into OUTPUT/FILE. A second run translates what is missing: what is there is
kept if the checksum stored with it is that of the same input, model and options.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import os
import sys
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow leaves it off for AVX2

import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the tokenizers' ops
from formats import COMPRESSED, FORMATS, check_rows, join, read_rows, translate_rows

STATE = "_state"  # the directory in OUTPUT, with a file and three directories with entries by FILE:
OPTIONS, SHARDS, FINISHED, MESSAGES = "options.json", "shards", "finished", "messages"
TEMPORARY = "temporary"  # a fourth one, with files that are being written
READ = "read.json"  # beside the shards of a file, once all are read: their checksums and the file's
# What decides the output, beside the files of the model.
LANGUAGES = ("source_language", "target_language")  # inputs of an export of several
DECISIVE = (
    "signature",
    "format",
    "field",
    "target_field",
    "output_field",
    "shard_rows",
    *LANGUAGES,
)
LEAST_LOG_PROB = -1e9  # of a text without a translation
SIGNATURES = ("serving_default", "beam", "score")
UNREADABLE = (OSError, EOFError, ValueError, NotImplementedError, zlib.error, tf.errors.OpError)


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
    copy_invalid: bool = False
    shard_rows: int = 5000
    batch_rows: int = 256
    batch_bytes: int = 1 << 16
    threads: int = 1
    source_language: str | None = None
    target_language: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """What the model reads of a row."""
        return (self.field, self.target_field) if self.signature == "score" else (self.field,)

    @property
    def new_fields(self) -> tuple[str, str]:
        """What is added to a row."""
        if self.signature == "score":
            return "log_prob", "tokens"
        return self.output_field, "log_prob"

    def finished(self, path: str) -> str:
        """Returns the path of a file's translation."""
        return f"{self.output.rstrip('/')}/{os.path.basename(path)}"

    def state(self, kind: str, path: str = "", *parts: str) -> str:
        """Returns the path of what is stored about a run, about a file or about a shard."""
        names = filter(None, (kind, os.path.basename(path), *parts))
        return "/".join([self.output.rstrip("/"), STATE, *names])


# (path of a file, number of a shard, its rows as of `read_rows`). A plain tuple, because the
# engines' workers cannot import this module to unpickle a class.
Shard: TypeAlias = tuple[str, int, Any]


def parse_arguments(description: str, words: Sequence[str] | None = None) -> tuple[Options, list]:
    """Parses the command line.

    Returns:
        The options, and the words that are not options of ours but may be the engine's.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--model", required=True, help="version directory of an export")
    add("--input", required=True, nargs="+", action="extend", help="files, or patterns as 'in/*'")
    add("--output", required=True, help="directory for files of the same names")
    add("--signature", default="serving_default", choices=SIGNATURES, help="of the export")
    add("--format", default="text", choices=FORMATS, help="of the files; *.gz is decompressed")
    add("--field", default="text", help="field to translate; with score, the source")
    add("--target-field", default="target", help="with score, the translation to score")
    add("--output-field", default="translation", help="new field")
    add("--copy-invalid", action="store_true", help="copy lines without --field, such as bad JSON")
    add("--shard-rows", type=int, default=5000, help="rows that a worker takes at a time")
    add("--batch-rows", type=int, default=256, help="maximum number of rows in a batch")
    add("--batch-bytes", type=int, default=1 << 16, help="maximum of rows x longest row in bytes")
    add("--threads", type=int, default=1, help="threads of each process")
    for name in LANGUAGES:
        add(f"--{name.replace('_', '-')}", help="code, for an export that has this input")
    known, rest = parser.parse_known_args(words)
    options = Options(**vars(known) | {"input": tuple(known.input)})
    for name in ("shard_rows", "batch_rows", "batch_bytes", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    for name in ("field", "target_field", "output_field"):
        if options.format == "text" and getattr(options, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} needs --format jsonl or parquet")
    if options.output_field == "log_prob":
        parser.error("--output-field must not be log_prob, which is added as well")
    if not options.output:
        parser.error("--output must be a directory, received an empty name")
    if not tf.io.gfile.exists(f"{options.model.rstrip('/')}/saved_model.pb"):
        parser.error(f"{options.model} has no saved_model.pb: give the version directory")
    return options, rest


# What is stored.


def _write_temporary(options, write):
    """Calls `write` with a file that gets its name later; returns its path."""
    path = options.state(TEMPORARY, uuid.uuid4().hex)
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(path, "wb") as file:
        write(file)
    return path


def _write(options, path, content):
    temporary = _write_temporary(options, lambda file: file.write(content))
    tf.io.gfile.makedirs(os.path.dirname(path))
    tf.io.gfile.rename(temporary, path, overwrite=True)


def _write_json(options, path, content):
    _write(options, path, json.dumps(content, sort_keys=True).encode())


def _read_json(path):
    """Returns the object in the first line of a file; None if there is none."""
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        return json.loads(file.readline())


def _remove(path):
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def _checksum(path, total=None):
    """Returns the SHA-256 of a file, after what `total` has hashed already."""
    total = total or hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while content := file.read(1 << 20):
            total.update(content)
    return total.hexdigest()


def _checksum_model(directory):
    """Returns the SHA-256 of the names and the content of all files of a model."""
    directory, total = directory.rstrip("/"), hashlib.sha256()
    paths = [
        f"{at.rstrip('/')}/{name}" for at, _, names in tf.io.gfile.walk(directory) for name in names
    ]
    for path in sorted(paths):
        total.update(f"{path.removeprefix(directory)} {_checksum(path)}\n".encode())
    return total.hexdigest()


def _checksum_rows(rows, options):
    """Returns the SHA-256 of the rows of a shard, the model and the options."""
    content = b"\n".join(rows) if isinstance(rows, list) else rows
    return hashlib.sha256(_model_and_options(options) + content).hexdigest()


def _model_and_options(options):
    with tf.io.gfile.GFile(options.state(OPTIONS), "rb") as file:
        return file.read()


# Inputs.


def find_inputs(options: Options) -> list[str]:
    """Lists the files to translate, and prepares the output directory.

    Raises:
        ValueError: If there are none, if outputs would not be theirs alone, or if the output
            directory has files of another model or of other options.
    """
    paths = _match(options.input)
    names = collections.Counter(map(os.path.basename, paths))
    if (most := names.most_common(1)[0])[1] > 1:
        raise ValueError(f"Two input files are named {most[0]}: translate them separately.")
    if tf.io.gfile.exists(options.output) and not tf.io.gfile.isdir(options.output):
        raise ValueError(f"{options.output} is a file: choose another --output.")
    for path in paths:
        _check_ending(path, options.format)
        _check_output(path, options)
    _check_options(options)
    if tf.io.gfile.exists(options.state(TEMPORARY)):  # of a run that was killed
        tf.io.gfile.rmtree(options.state(TEMPORARY))
    return paths


def find_inputs_or_exit(options: Options) -> list[str]:
    """Calls `find_inputs`; prints errors in one line."""
    try:
        return find_inputs(options)
    except UNREADABLE as error:
        sys.exit(" ".join(str(error).split()))


def _match(words):
    """Lists the files that words name; a file whose name looks like a pattern is that file."""
    paths: dict[str, str] = {}
    for word in words:
        found = [word] if tf.io.gfile.exists(word) else sorted(tf.io.gfile.glob(word))
        if not os.path.basename(word).startswith("."):  # as in a shell
            found = [path for path in found if not os.path.basename(path).startswith(".")]
        if not found:
            raise ValueError(f"{word} matches no file: check the name or the pattern.")
        for path in found:
            if tf.io.gfile.isdir(path):
                print(f"{path} is a directory: it is skipped.", file=sys.stderr)
            else:
                paths.setdefault(_absolute(path), path)
    if not paths:
        raise ValueError(f"{' '.join(words)} matches directories only: give '{words[0]}/*'.")
    return list(paths.values())


def _absolute(path):
    return path if "://" in path else os.path.abspath(path)


def _check_ending(path, format):
    ending = os.path.splitext(path.lower().removesuffix(".gz"))[1]
    if ending in COMPRESSED:
        raise ValueError(f"{path} is compressed as {ending}: compress it as .gz, or not at all.")
    if ending in (".jsonl", ".parquet") and ending[1:] != format:
        raise ValueError(f"{path} is not of --format {format}: give --format {ending[1:]}.")


def _check_output(path, options):
    """Checks that what has the name of a file's translation is that, or nothing."""
    if os.path.realpath(os.path.dirname(path)) == os.path.realpath(options.output):
        raise ValueError(f"{path} is in --output itself: choose another --output.")
    output = options.finished(path)
    if not tf.io.gfile.exists(output):
        return
    record = _read_json(options.state(FINISHED, path))
    if not record or record["output_bytes"] != tf.io.gfile.stat(output).length:
        raise ValueError(
            f"{output} exists, and is not as this program has written it: remove it, or choose "
            "another --output."
        )
    if record["input"] != _absolute(path):
        raise ValueError(
            f"{output} is the translation of {record['input']}, not of {path}: two inputs cannot "
            "have one output, so choose another --output."
        )


def _check_options(options):
    """Stores model and options; raises if what is there was made by others."""
    found = {name: getattr(options, name) for name in DECISIVE}
    found["model"] = _checksum_model(options.model)
    before = _read_json(options.state(OPTIONS)) or found
    places = [options.state(kind) for kind in (SHARDS, FINISHED)]
    if any(names for place in places for *_, names in tf.io.gfile.walk(place)):
        changed = {name: value for name, value in before.items() if found[name] != value}
        if "model" in changed:
            raise ValueError(
                f"{options.output} has files of a run with another model than {options.model} is "
                "now: choose another --output."
            )
        if changed:
            listed = ", ".join(f"{name} {value}" for name, value in changed.items())
            raise ValueError(
                f"{options.output} has files of a run with other options ({listed}): give those, "
                "or choose another --output."
            )
    _write_json(options, options.state(OPTIONS), found)


# Reading.


def read_shards(path: str, options: Options) -> Iterator[Shard]:
    """Yields the shards of a file that are not translated yet, then (path, number of shards, None).

    Yields nothing of a finished file. If the file cannot be translated, stores the reason instead.
    """
    _remove(options.state(MESSAGES, path))
    try:
        yield from _read_shards(path, options)
    except UNREADABLE as error:
        _store_message(path, options, f"{path} cannot be read: {' '.join(str(error).split())}", 0)


def _store_message(path, options, text, failed=None):
    """Stores a line for the report; `failed` is the number of failed rows if the file failed."""
    _write_json(options, options.state(MESSAGES, path), {"text": text, "failed": failed})


def _read_shards(path, options):
    def checksum():
        return _checksum(path, hashlib.sha256(_model_and_options(options)))

    before, record = checksum(), _read_json(options.state(FINISHED, path))
    if record and tf.io.gfile.exists(options.finished(path)):
        if record["checksum"] == before and (options.copy_invalid or not record["copied"]):
            return
        text = f"{path} has changed since it was translated, and is translated again."
        _store_message(path, options, text)
    # Mistakes are found before anything is translated.
    failed, reason = check_rows(path, options)
    if failed:
        _store_message(path, options, reason, failed)
        return
    _remove(options.finished(path))
    checksums, replaced = [], 0
    for rows in read_rows(path, options):
        shard = _read_json(options.state(SHARDS, path, f"{len(checksums)}"))
        expected = _checksum_rows(rows, options)
        if not shard or shard["checksum"] != expected:
            replaced += shard is not None
            yield path, len(checksums), rows
        checksums.append(expected)
    if checksum() != before:
        raise ValueError("it changed while it was read, so run the same command again.")
    if replaced:
        text = f"{path} has changed, and {replaced} of its shards are translated again."
        _store_message(path, options, text)
    found = {"checksum": before, "shards": checksums}
    _write_json(options, options.state(SHARDS, path, READ), found)
    yield path, len(checksums), None


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
        self._names = ("source", "target") if options.signature == "score" else ("text",)
        state = _read_json(options.state(OPTIONS))
        if state and state["model"] != _checksum_model(options.model):
            raise ValueError(
                f"{options.model} is another model on this machine than where the program was "
                "started: copy the same to all."
            )
        self._loaded = tf.saved_model.load(options.model)  # owns what the signature needs
        signatures = self._loaded.signatures
        if options.signature not in signatures:
            raise ValueError(
                f"{options.model} has no signature {options.signature}, but {sorted(signatures)}: "
                "export the run again with it."
            )
        self._function = signatures[options.signature]
        codes = {name: getattr(options, name) for name in LANGUAGES}
        self._languages = {name: code for name, code in codes.items() if code is not None}
        names = self._function.structured_input_signature[1].keys() & {*LANGUAGES}
        if names != self._languages.keys():
            raise ValueError(
                f"{options.model} needs {' and '.join(sorted(names)) or 'no language'}, received "
                f"{', '.join(self._languages) or 'none'}: give such options, or leave them out."
            )
        # One column of the answer is the log-probability.
        if names and LEAST_LOG_PROB in self(*[[b"a"]] * len(self._names))[0]:
            raise ValueError(f"{options.model} knows no {' or '.join(self._languages.values())}.")

    def __call__(self, *texts: Sequence[bytes]) -> list[tuple]:
        """Translates texts in batches of similar length.

        Args:
            *texts: The sources; with `score` also the targets.

        Returns:
            For each text (translation, log_prob), with `score` (log_prob, number of tokens).
        """
        names = self._names
        outputs = ("log_prob", "tokens") if len(names) == 2 else ("text", "log_prob")
        rows = list(zip(*texts, strict=True))
        sizes = [sum(map(len, row)) for row in rows]
        found: list[Any] = [None] * len(rows)
        for batch in self._batches(sizes):
            inputs = {
                name: tf.constant([rows[row][column] for row in batch], tf.string)
                for column, name in enumerate(names)
            }
            inputs |= {name: tf.fill([len(batch)], code) for name, code in self._languages.items()}
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
    content, translated, copied = translate_rows(rows, model, options)
    checksum = _checksum_rows(rows, options)
    head = json.dumps({"checksum": checksum, "translated": translated, "copied": copied})
    _write(options, options.state(SHARDS, path, f"{number}"), head.encode() + b"\n" + content)
    return path, number


# Finishing.


def finish_file(path: str, count: int, options: Options) -> None:
    """Joins the shards of a file, if all are there, and removes them."""
    parts = [options.state(SHARDS, path, f"{number}") for number in range(count)]
    heads = [_read_json(part) or {} for part in parts]
    read = _read_json(options.state(SHARDS, path, READ))
    if not read or [head.get("checksum") for head in heads] != read["shards"]:
        return
    temporary = _write_temporary(
        options, lambda file: join(file, map(_read_content, parts), path, options)
    )
    record = {
        "input": _absolute(path),
        "checksum": read["checksum"],
        "output_bytes": tf.io.gfile.stat(temporary).length,
        "translated": sum(head["translated"] for head in heads),
        "copied": sum(head["copied"] for head in heads),
    }
    # The record comes first: a translation without one would not be recognized by the next run.
    _write_json(options, options.state(FINISHED, path), record)
    tf.io.gfile.rename(temporary, options.finished(path), overwrite=True)
    tf.io.gfile.rmtree(options.state(SHARDS, path))


def _read_content(part):
    with tf.io.gfile.GFile(part, "rb") as file:
        return file.read().partition(b"\n")[2]


def exit_with_report(paths: Sequence[str], options: Options) -> None:
    """Prints what became of each file, and exits with 1 unless all rows were translated."""
    complete = 0
    for path in paths:
        message = _read_json(options.state(MESSAGES, path)) or {"text": "", "failed": None}
        _remove(options.state(MESSAGES, path))
        if message["text"]:
            print(message["text"], file=sys.stderr)
        if message["failed"] == 0:  # it could not be read
            continue
        translated = copied = 0
        if message["failed"] is None:
            if not tf.io.gfile.exists(options.finished(path)):
                print(f"{path} is not finished: run the same command again.", file=sys.stderr)
                continue
            record = _read_json(options.state(FINISHED, path))
            translated, copied = record["translated"], record["copied"]
            complete += not copied
        counts = f"{translated} lines translated, {copied} copied, {message['failed'] or 0} failed"
        print(f"{path}: {counts}", file=sys.stderr)
    print(f"{complete} of {len(paths)} files translated.", file=sys.stderr)
    sys.exit(1 if complete < len(paths) else 0)
