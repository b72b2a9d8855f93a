"""Bulk translation: the shards in this process; the engines in `make ordeal`."""

import functools
import gzip
import json
import math
import os
import shutil
import sys

import pytest
import tensorflow as tf

from tests.support import child_process
from tests.support.paths import EXPORT
from tests.support.toy_translator import SOURCES

sys.path.append(str(EXPORT / "bulk"))
import shards  # noqa: E402

ENGINES = {"on_apache_beam.py": "BEAM", "on_spark.py": "SPARK"}  # variables that name a Python
LINES = b"".join(b"line %d\n" % number for number in range(6))
TEXTS = [*(text.encode() for text in SOURCES), b"\xff\xfe A", b"", "Ü\u2028B".encode()]


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tf.saved_model, "load", functools.cache(tf.saved_model.load))
        yield


def run_all(options, model=None, stop_after=None):
    """As the engines; returns the exit status, None if killed after so many shards."""
    paths = shards.find_inputs(options)
    model = model or shards.Model(options)
    for path in paths:
        for count, shard in enumerate(list(shards.read_shards(path, options))):
            if count == stop_after:
                return None
            if shard[2] is None:
                shards.finish_file(path, shard[1], options)
            else:
                shards.translate_shard(shard, model, options)
    with pytest.raises(SystemExit) as end:
        shards.exit_with_report(paths, options)
    return end.value.code


class Capitals:
    def __init__(self):
        self.texts = []

    def __call__(self, texts):
        self.texts += texts
        return [(text.upper(), -1.0) for text in texts]


@pytest.fixture
def make_job(tmp_path):
    """Returns a function that writes files into in/ and returns options; two lines per shard."""
    for name in ("in", "other", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    usual = dict(model=str(tmp_path / "model"), input=(str(tmp_path / "in" / "*"),))
    usual |= dict(output=str(tmp_path / "out"), shard_rows=2)

    def make(files=None, **options):
        for name, content in (files or {}).items():
            (tmp_path / "in" / name).write_bytes(content)
        return shards.Options(**usual | options)

    return make


def test_text_equals_translate(make_job, toy_version, translator, tmp_path):
    expected = b"".join(text.encode() + b"\n" for text in translator.translate(TEXTS))
    content = b"\xef\xbb\xbf" + b"\r\n".join(TEXTS) + b"\r\n"
    files = {"a.txt": content, "empty.txt": b"", "z.TXT.GZ": gzip.compress(b"\n".join(TEXTS))}
    # Batches of one row by bytes, and of few rows: no row depends on the others.
    for batch in ({"batch_bytes": 1}, {"batch_rows": 3}):
        assert run_all(make_job(files, model=toy_version, shard_rows=8, **batch)) == 0
        assert (tmp_path / "out" / "a.txt").read_bytes() == expected
        assert (tmp_path / "out" / "empty.txt").read_bytes() == b""
        assert gzip.decompress((tmp_path / "out" / "z.TXT.GZ").read_bytes()) == expected
        shutil.rmtree(tmp_path / "out")


def test_second_run_translates_what_is_missing(make_job, tmp_path):
    options, model = make_job({"a.txt": LINES, "b.txt": b"b"}), Capitals()
    assert run_all(options, model, stop_after=2) is None
    assert run_all(options, model) == 0
    assert model.texts == [*LINES.splitlines(), b"b"], "each line was translated once"
    assert (tmp_path / "out" / "a.txt").read_bytes() == LINES.upper()
    assert run_all(options, model) == 0 and len(model.texts) == 7
    (tmp_path / "out" / "b.txt").unlink()
    assert run_all(options, model) == 0 and model.texts[7:] == [b"b"]
    assert sorted(os.listdir(tmp_path / "out")) == [shards.STATE, "a.txt", "b.txt"]


@pytest.mark.parametrize("stop_after", [2, None])
def test_changed_input_is_translated_again(stop_after, make_job, tmp_path, capsys):
    """Be it interrupted or finished: a shard or a file is kept only if its input is the same."""
    options, model = make_job({"a.txt": LINES}), Capitals()
    run_all(options, model, stop_after)
    capsys.readouterr()
    make_job({"a.txt": b"new\n" + LINES})
    assert run_all(options, model) == 0
    assert (tmp_path / "out" / "a.txt").read_bytes() == (b"new\n" + LINES).upper()
    changed, report, _ = capsys.readouterr().err.splitlines()
    assert "a.txt has changed" in changed and "a.txt: 7 lines translated, 0 copied" in report


@pytest.mark.parametrize("stop_after", [1, None])
def test_other_model_or_options_are_refused(stop_after, make_job, tmp_path):
    options = make_job({"a.txt": LINES})
    run_all(options, Capitals(), stop_after)
    with pytest.raises(ValueError, match="run with other options .* choose another --output"):
        shards.find_inputs(make_job(signature="beam"))
    (tmp_path / "model" / "variables").write_bytes(b"other weights")
    with pytest.raises(ValueError, match="another model than .*model is now: choose another"):
        shards.find_inputs(options)
    with pytest.raises(ValueError, match="is another model on this machine"):  # a worker's
        shards.Model(options)
    # Whoever removes what is compared does not mix them either.
    (tmp_path / "out" / shards.STATE / shards.OPTIONS).unlink()
    assert run_all(options, model := Capitals()) == 0 and len(model.texts) == 6


def test_file_that_changes_while_it_is_read(make_job, tmp_path, capsys):
    options, model = make_job({"a.txt": LINES}), Capitals()
    (path,) = shards.find_inputs(options)
    reading = shards.read_shards(path, options)
    shards.translate_shard(next(reading), model, options)
    with open(path, "ab") as file:
        file.write(b"more\n")
    assert all(rows is not None for *_, rows in reading), "the file does not end"
    with pytest.raises(SystemExit, match="1"):
        shards.exit_with_report([path], options)
    assert "changed while it was read, so run the same command" in capsys.readouterr().err
    assert run_all(options, model) == 0
    assert (tmp_path / "out" / "a.txt").read_bytes() == LINES.upper() + b"MORE\n"


def test_unreadable_file_is_named_and_the_others_are_finished(make_job, capsys):
    whole = gzip.compress(LINES)
    assert run_all(make_job({"a.txt": LINES, "z.txt.gz": whole[:-9]}), Capitals()) == 1
    error = capsys.readouterr().err
    assert "z.txt.gz cannot be read: " in error and "1 of 2 files translated" in error


def test_json_lines(make_job, toy_version, tmp_path):
    texts = [text.decode("utf-8", "replace") for text in TEXTS]
    rows = [json.dumps({"n": i, "en": text}).encode() for i, text in enumerate(texts)]
    rows[5:5] = [b"", b'{"n": 1E400, "en": "AB" } ']
    how = dict(format="jsonl", field="en", output_field="de", signature="beam", shard_rows=8)
    options = make_job({"a.jsonl": b"\n".join(rows)}, model=toy_version, **how)
    assert run_all(options) == 0
    output = (tmp_path / "out" / "a.jsonl").read_bytes().splitlines()
    assert output.pop(5) == b""
    assert output.pop(5).startswith(b'{"n": 1E400, "en": "AB", "de": "')
    found = [json.loads(row) for row in output]
    assert [(row["n"], row["en"]) for row in found] == list(enumerate(texts))
    expected = shards.Model(options)([text.encode() for text in texts])
    assert [row["de"].encode() for row in found] == [text for text, _ in expected]
    assert [row["log_prob"] for row in found] == pytest.approx([x for _, x in expected], abs=1e-4)


def test_lines_without_text_are_named_or_copied_by_request(make_job, tmp_path, capsys):
    no_text = b'{"en": "a"}', b'{"text": null}', b'["text"]', b"{", b"[" * 100_000, b"\xff"
    rows = [b'{"text": "a"}', b"", *no_text]
    taken = b'{"text": "a", "log_prob": 0}'  # by what would be written
    model, files = Capitals(), {"a.jsonl": b"\n".join(rows), "b.jsonl": rows[0]}
    options = make_job(files, format="jsonl")
    assert run_all(options, model) == 1
    assert model.texts == [b"a"], "of b.jsonl alone"
    error = capsys.readouterr().err
    assert f"Line 3 of {tmp_path}/in/a.jsonl is not a JSON object with a string 'text'" in error
    assert "a.jsonl: 0 lines translated, 0 copied, 6 failed\n" in error
    assert "b.jsonl: 1 lines translated, 0 copied, 0 failed\n1 of 2 files" in error
    assert not (tmp_path / "out" / "a.jsonl").exists()
    assert run_all(make_job(format="jsonl", copy_invalid=True), model) == 1, "not all translated"
    assert "a.jsonl: 2 lines translated, 6 copied, 0 failed\n" in capsys.readouterr().err
    output = (tmp_path / "out" / "a.jsonl").read_bytes().splitlines()
    assert output == [b'{"text": "a", "translation": "A", "log_prob": -1.0}', *rows[1:]]
    assert run_all(make_job({"c.jsonl": taken}, format="jsonl", copy_invalid=True), model) == 1
    assert "Line 1 of" in (error := capsys.readouterr().err) and "already has 'log_prob'" in error
    # The copied lines remain mistakes without the option.
    assert run_all(options, model) == 1
    assert "a.jsonl: 0 lines translated, 0 copied, 6 failed\n" in capsys.readouterr().err


def test_scores_per_token(make_job, toy_version, translator, tmp_path, capsys):
    pairs = [(text, text[:3].upper()) for text in TEXTS]
    content = b"".join(b"%b\t%b\n" % pair for pair in pairs)
    files = {"a.tsv": content, "b.tsv": b"a\tb\n\nc\td\te\n"}
    assert run_all(make_job(files, model=toy_version, signature="score")) == 1
    rows = [row.split(b"\t") for row in (tmp_path / "out" / "a.tsv").read_bytes().splitlines()]
    assert [tuple(row[:2]) for row in rows] == pairs
    scores = translator.score(*zip(*pairs, strict=True))
    expected = [log_prob / tokens if tokens else -math.inf for log_prob, tokens in scores]
    assert [float(row[2]) for row in rows] == pytest.approx(expected, abs=1e-4)
    error = capsys.readouterr().err
    assert "Line 2 of" in error and "has 1 of 2 columns: expected source, tab, target" in error


def test_arguments(toy_version, capsys):
    usual = ["--model", toy_version, "--output", "o", "--input", "a"]
    options, rest = shards.parse_arguments("", [*usual, "b", "--input", "c", "--feild", "x"])
    assert options.input == ("a", "b", "c") and rest == ["--feild", "x"]
    for words, message in (
        ("--model none", "none has no saved_model.pb"),
        ("--shard-rows 0", "--shard-rows must be at least 1"),
        ("--field en", "--field needs --format jsonl or parquet"),
        ("--format jsonl --output-field log_prob", "--output-field must not be log_prob"),
    ):
        with pytest.raises(SystemExit, match="2"):
            shards.parse_arguments("", [*usual, *words.split()])
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="has no signature other, but .'attention', 'beam'"):
        shards.Model(shards.Options(toy_version, ("a",), "none", signature="other"))


def test_inputs_are_names_before_they_are_patterns(make_job, tmp_path, capsys):
    files = dict.fromkeys(["a.txt", "b[1].txt", "c.txt", ".hidden"], b"x")
    (tmp_path / "in" / "folder").mkdir()
    words = ["b[1].txt", "[ac].txt", "*", "folder"]
    options = make_job(files, input=tuple(str(tmp_path / "in" / word) for word in words))
    assert run_all(options, Capitals()) == 0
    assert sorted(os.listdir(tmp_path / "out"))[1:] == ["a.txt", "b[1].txt", "c.txt"]
    assert "folder is a directory: it is skipped" in capsys.readouterr().err


def refused(options, message):
    with pytest.raises(ValueError, match=message):
        shards.find_inputs(options)


def test_inputs_that_are_refused(make_job, tmp_path):
    make_job(dict.fromkeys(["a.txt", "c.txt.zst", "d.JSONL"], b"x"))
    (tmp_path / "in" / "folder").mkdir()
    (tmp_path / "other" / "a.txt").touch()
    for names, message in (
        ("in/a.txt in/none*", r"in/none\* matches no file: check the name or the pattern"),
        ("in/f*", r"matches directories only: give '.*in/f\*/\*'"),
        ("in/c.txt.zst", r"is compressed as \.zst: compress it as \.gz"),
        ("in/d.JSONL", "is not of --format text: give --format jsonl"),
        ("in/a.txt other/a.txt", r"Two input files are named a\.txt"),
    ):
        refused(make_job(input=tuple(str(tmp_path / name) for name in names.split())), message)
    refused(
        make_job(output=str(tmp_path / "other" / "a.txt")), "is a file: choose another --output"
    )
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_refused(make_job, tmp_path):
    """Nothing is overwritten that this program has not written from the same file."""
    options, output = make_job({"a.txt": b"x\n"}), tmp_path / "out" / "a.txt"
    os.symlink(tmp_path / "in", tmp_path / "link")
    refused(make_job(output=str(tmp_path / "link")), "is in --output itself")
    output.parent.mkdir()
    output.write_bytes(b"mine")
    refused(options, "out/a.txt exists, and is not as this program has written it: remove it")
    output.unlink()
    assert run_all(options, Capitals()) == 0
    other = tmp_path / "other" / "a.txt"
    other.write_bytes(b"y\n")
    refused(make_job(input=(str(other),)), "translation of .*in/a.txt, not of .*two inputs cannot")
    os.truncate(output, 1)
    refused(options, "out/a.txt exists, and is not as this program has written it")


WRITE_TABLES = """
import pyarrow as pa
from pyarrow.parquet import write_table
write_table(pa.table({"text": ["a", "", None, "b"]}), "strings.parquet")
write_table(pa.table({"text": ["a"], "translation": ["old"]}), "translated.parquet")
write_table(pa.table({"text": [1]}), "numbers.parquet")
"""
READ_TABLE = """
import json, pyarrow.parquet
table = pyarrow.parquet.read_table("tables/strings.parquet")
print(json.dumps(table["translation"].to_pylist()))
"""


@pytest.mark.ordeal
@pytest.mark.parametrize("program", ENGINES)
def test_engines_in_processes_without_this_package(program, translator, toy_version, tmp_path):
    if not (python := os.environ.get(ENGINES[program])):
        pytest.skip(f"{ENGINES[program]} is not set: see `make ordeal`")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(status, *words):
        options = dict(env=environment, cwd=tmp_path, capture_output=True, timeout=600)
        done = child_process.run([python, *words], **options)
        error = done.stderr.decode()
        assert done.returncode == status and "Traceback" not in error, error[-3000:]
        return done.stdout.decode() + error

    usual = [EXPORT / "bulk" / program, "--model", toy_version, "--shard-rows", "8"]
    (tmp_path / "a.txt").write_bytes(b"\n".join(TEXTS))
    texts = [*usual, "--input", "a.txt", "--output", "out"]
    assert "Unknown option --feild" in run(1, *texts, "--feild", "body")
    run(0, *texts)
    expected = b"".join(text.encode() + b"\n" for text in translator.translate(TEXTS))
    assert (tmp_path / "out" / "a.txt").read_bytes() == expected
    run(0, "-c", WRITE_TABLES)
    said = run(1, *usual, "--input", "*.parquet", "--output", "tables", "--format", "parquet")
    assert "translated.parquet cannot be read: it already has 'translation'" in said
    assert "numbers.parquet cannot be read: its column 'text' has the type int64" in said
    one, other = translator.translate(["a", "b"])
    assert json.loads(run(0, "-c", READ_TABLE)) == [one, "", None, other]
