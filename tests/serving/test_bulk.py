"""Bulk translation: the shards in this process; the engines in `make ordeal`."""

import gzip
import json
import math
import os
import random
import shutil
import sys

import pytest

from tests.support import child_process
from tests.support.paths import EXPORT, SUPPORT
from tests.support.toy_translator import trained_translator

sys.path.append(str(EXPORT / "bulk"))
import shards  # noqa: E402

# For each engine, the Python of an environment that has it.
ENGINES = {"on_apache_beam.py": "BEAM", "on_spark.py": "SPARK"}


def translate(lines):
    """The same lines in memory, without the engine's batches."""
    return [text.encode() for text in trained_translator().translate(lines)]


@pytest.fixture(scope="module")
def lines():
    draw = random.Random(3)
    texts = ["".join(draw.choices("abcdefgh ", k=draw.randint(0, 11))) for _ in range(60)]
    return [text.encode() for text in texts] + [b"\xff\xfe A", b"", "Ü\u2028B".encode()]


def run_all(options, model=None, stop_after=None):
    """What the engines do, in one process; returns the exit status, None if killed after shards."""
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


def make_options(model, tmp_path, **options):
    pattern, output = str(tmp_path / "in" / "*"), str(tmp_path / "out")
    options = {"shard_rows": 17, "input": (pattern,), "output": output} | options
    return shards.Options(str(model), **options)


class Capitals:
    """Instead of a model: writes the texts in capitals, and remembers them."""

    def __init__(self):
        self.texts = []

    def __call__(self, *texts):
        self.texts += texts[0]
        return [(text.upper(), -1.0) for text in texts[0]]


@pytest.fixture
def make_job(tmp_path):
    """Returns a function that writes files into in/ and returns options; two lines per shard."""
    for name in ("in", "other", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")

    def make(files=None, **options):
        for name, content in (files or {}).items():
            (tmp_path / "in" / name).write_bytes(content)
        return make_options(tmp_path / "model", tmp_path, **{"shard_rows": 2} | options)

    return make


def write_texts(folder, lines):
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "z.txt.gz").write_bytes(gzip.compress(b"\n".join(lines[:20])))


def check_texts(folder, expected, expected_gz=None):
    assert (folder / "a.txt").read_bytes() == b"".join(line + b"\n" for line in expected)
    assert (folder / "empty.txt").read_bytes() == b""
    found = gzip.decompress((folder / "z.txt.gz").read_bytes())
    assert found == b"".join(line + b"\n" for line in (expected_gz or expected)[:20])


def test_text_equals_translate(toy_version, lines, tmp_path):
    write_texts(tmp_path / "in", lines)
    # Batches of one row by bytes, and of few rows: no row depends on the others.
    for batch in ({"batch_bytes": 1}, {"batch_rows": 7}):
        options = make_options(toy_version, tmp_path, **batch)
        assert run_all(options) == 0
        check_texts(tmp_path / "out", translate(lines))
        shutil.rmtree(tmp_path / "out")


LINES = b"".join(b"line %d\n" % number for number in range(6))


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
    make_job({"a.txt": b"new\n" + LINES})
    capsys.readouterr()
    assert run_all(options, model) == 0
    assert (tmp_path / "out" / "a.txt").read_bytes() == (b"new\n" + LINES).upper()
    changed, report, _ = capsys.readouterr().err.splitlines()
    assert "a.txt has changed" in changed and "a.txt: 7 lines translated, 0 copied" in report
    # What is equal in a shard that was not finished is kept.
    run_all(make_job({"a.txt": LINES}, output=str(tmp_path / "2")), Capitals(), stop_after=3)
    model = Capitals()
    run_all(make_job({"a.txt": LINES + b"end"}, output=str(tmp_path / "2")), model)
    assert model.texts == [b"end"]


@pytest.mark.parametrize("stop_after", [1, None])
def test_other_model_or_options_are_refused(stop_after, make_job, tmp_path):
    options = make_job({"a.txt": LINES})
    run_all(options, Capitals(), stop_after)
    with pytest.raises(ValueError, match="run with other options .* choose another --output"):
        shards.find_inputs(make_job(signature="beam"))
    (tmp_path / "model" / "variables").write_bytes(b"other weights")
    with pytest.raises(ValueError, match="another model than .*model is now: choose another"):
        shards.find_inputs(options)
    # Whoever removes what is compared does not mix them either.
    (tmp_path / "out" / shards.STATE / shards.OPTIONS).unlink()
    model = Capitals()
    assert run_all(options, model) == 0 and len(model.texts) == 6


def test_options_may_be_corrected_while_nothing_is_translated(make_job, tmp_path):
    files = {"a.jsonl": b'{"text": "a"}'}
    assert run_all(make_job(files, format="jsonl", field="body"), Capitals()) == 1
    assert run_all(make_job(format="jsonl"), Capitals()) == 0


def test_model_of_a_worker_is_the_one_of_the_start(toy_version, tmp_path):
    write_texts(tmp_path / "in", [b"A"])
    shutil.copytree(toy_version, tmp_path / "model")
    options = make_options(tmp_path / "model", tmp_path)
    shards.find_inputs(options)
    (tmp_path / "model" / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="is another model on this machine"):
        shards.Model(options)


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


def test_unreadable_file_is_named_and_the_others_are_finished(toy_version, lines, tmp_path, capsys):
    write_texts(tmp_path / "in", lines)
    whole = (tmp_path / "in" / "z.txt.gz").read_bytes()
    (tmp_path / "in" / "z.txt.gz").write_bytes(whole[:-9])
    options = make_options(toy_version, tmp_path)
    assert run_all(options) == 1
    error = capsys.readouterr().err
    assert "z.txt.gz cannot be read: " in error and "2 of 3 files translated" in error
    (tmp_path / "in" / "z.txt.gz").write_bytes(whole)
    assert run_all(options) == 0 and sorted(os.listdir(tmp_path / "out"))[-1] == "z.txt.gz"


def test_json_lines(toy_version, lines, tmp_path):
    texts = [line.decode("utf-8", "replace") for line in lines]
    rows = [json.dumps({"n": i, "en": text}).encode() for i, text in enumerate(texts)]
    rows[5:5] = [b"", b'{"n": 1E400, "en": "AB" } ']
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join(rows))
    options = make_options(
        toy_version, tmp_path, format="jsonl", field="en", output_field="de", signature="beam"
    )
    assert run_all(options) == 0
    output = (tmp_path / "out" / "a.jsonl").read_bytes().splitlines()
    assert output[5] == b""
    assert output[6].startswith(b'{"n": 1E400, "en": "AB", "de": "')
    found = [json.loads(row) for row in output[:5] + output[7:]]
    assert [(row["n"], row["en"]) for row in found] == list(enumerate(texts))
    model = shards.Model(options)
    expected = model([text.encode() for text in texts])
    assert [row["de"].encode() for row in found] == [text for text, _ in expected]
    assert [row["log_prob"] for row in found] == pytest.approx([x for _, x in expected], abs=1e-4)


INVALID = [
    (b'{"en": "a"}', "is not a JSON object with a string 'text': give --field"),
    (b'{"text": null}', "is not a JSON object with a string 'text': give --field"),
    (b'["text"]', "is not a JSON object with a string 'text': give --field"),
    (b"{", "is not valid JSON: --format jsonl needs one object per line"),
    (b"[" * 100_000, "is not valid JSON"),
]


@pytest.mark.parametrize("line, message", INVALID)
def test_line_without_text_is_named_or_copied_by_request(line, message, make_job, tmp_path, capsys):
    """As `translate --format jsonl`."""
    rows = [b'{"text": "a"}', b"", line, line]
    options, model = (
        make_job({"a.jsonl": b"\n".join(rows), "b.jsonl": rows[0]}, format="jsonl"),
        Capitals(),
    )
    assert run_all(options, model) == 1
    assert model.texts == [b"a"], "of b.jsonl alone"
    error = capsys.readouterr().err
    assert f"Line 3 of {tmp_path}/in/a.jsonl {message}" in error
    assert "a.jsonl: 0 lines translated, 0 copied, 2 failed\n" in error
    assert "b.jsonl: 1 lines translated, 0 copied, 0 failed\n1 of 2 files" in error
    assert not (tmp_path / "out" / "a.jsonl").exists()

    copying = make_job(format="jsonl", copy_invalid=True)
    assert run_all(copying, model) == 1, "not all lines were translated"
    assert "a.jsonl: 2 lines translated, 2 copied, 0 failed\n" in capsys.readouterr().err
    output = (tmp_path / "out" / "a.jsonl").read_bytes().splitlines()
    assert output == [b'{"text": "a", "translation": "A", "log_prob": -1.0}', *rows[1:]]
    # The copied lines remain mistakes without the option.
    assert run_all(copying, model) == 1 and run_all(options, model) == 1
    assert "a.jsonl: 0 lines translated, 0 copied, 2 failed\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, help", [("translation", "another --output-field"), ("log_prob", "rename it")]
)
def test_field_that_is_there_already(name, help, make_job, tmp_path, capsys):
    row = b'{"text": "a", "%b": 0}' % name.encode()
    for copy_invalid in (False, True):
        options, model = (
            make_job({"a.jsonl": row}, format="jsonl", copy_invalid=copy_invalid),
            Capitals(),
        )
        assert run_all(options, model) == 1
        assert f"Line 1 of {tmp_path}/in/a.jsonl already has '{name}': " in (
            error := capsys.readouterr().err
        )
        assert help in error and model.texts == []


def test_table_to_score_has_two_columns(make_job, capsys):
    files = {"a.tsv": b"a\tb\n\nc\td\te\n"}
    assert run_all(make_job(files, signature="score"), Capitals()) == 1
    error = capsys.readouterr().err
    assert "Line 2 of" in error and "has 1 of 2 columns: expected source, tab, target" in error
    assert "a.tsv: 0 lines translated, 0 copied, 2 failed" in error


def test_scores_per_token(toy_version, lines, tmp_path):
    """As `score` computes them; a corpus is filtered by them."""
    pairs = [(line.replace(b"\t", b" "), line[::-1]) for line in lines[:30]]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tsv").write_bytes(b"".join(b"%b\t%b\n" % pair for pair in pairs))
    options = make_options(toy_version, tmp_path, signature="score")
    assert run_all(options) == 0
    rows = [row.split(b"\t") for row in (tmp_path / "out" / "a.tsv").read_bytes().splitlines()]
    assert [tuple(row[:2]) for row in rows] == pairs
    scores = trained_translator().score(*zip(*pairs, strict=True))
    expected = [log_prob / tokens if tokens else -math.inf for log_prob, tokens in scores]
    assert [float(row[2]) for row in rows] == pytest.approx(expected, abs=1e-4)


MISTAKES = [
    (["--output", "o", "--input", "i", "--model", "none"], "none has no saved_model.pb"),
    (["--output", "o", "--input", "i", "--shard-rows", "0"], "--shard-rows must be at least 1"),
    (["--output", "o", "--input", "i", "--format", "xml"], "invalid choice: 'xml'"),
    (["--output", "o"], "required: --input"),
    (["--output", "", "--input", "i"], "--output must be a directory"),
    (["--output", "o", "--input", "i", "--field", "en"], "--field needs --format jsonl or parquet"),
    (
        ["--output", "o", "--input", "i", "--format", "jsonl", "--output-field", "log_prob"],
        "--output-field must not be log_prob",
    ),
]


@pytest.mark.parametrize("words, message", MISTAKES)
def test_mistakes(words, message, toy_version, capsys):
    with pytest.raises(SystemExit, match="2"):
        shards.parse_arguments("", ["--model", str(toy_version), *words])
    assert message in capsys.readouterr().err


def test_arguments(toy_version):
    words = ["--model", str(toy_version), "--output", "o", "--input", "a", "b", "--input", "c"]
    options, rest = shards.parse_arguments("", [*words, "--feild", "x"])
    assert options.input == ("a", "b", "c") and rest == ["--feild", "x"]


def test_signature_that_the_export_lacks(toy_version, tmp_path):
    with pytest.raises(ValueError, match="has no signature nothing"):
        shards.Model(make_options(toy_version, tmp_path, signature="nothing"))


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
    refused(make_job(), r"in/\* matches no file: check the name or the pattern")
    (tmp_path / "in" / "folder").mkdir()
    refused(make_job(), r"matches directories only: give '.*in/\*/\*'")
    files = {"a.txt": b"x", "c.txt.zst": b"", "d.JSONL": b"", "e.parquet": b""}
    inputs = {name: str(tmp_path / "in" / name) for name in files}
    both = (inputs["a.txt"], str(tmp_path / "in" / "missing.txt"))
    refused(make_job(files, input=both), "missing.txt matches no file")
    refused(make_job(input=(inputs["c.txt.zst"],)), r"is compressed as \.zst: compress it as \.gz")
    refused(make_job(input=(inputs["d.JSONL"],)), "is not of --format text: give --format jsonl")
    refused(make_job(input=(inputs["e.parquet"],), format="jsonl"), "give --format parquet")
    (tmp_path / "other" / "a.txt").write_bytes(b"y")
    both = (inputs["a.txt"], str(tmp_path / "other" / "a.txt"))
    refused(make_job(input=both), r"Two input files are named a\.txt")
    refused(make_job(input=both[:1], output=both[1]), "is a file: choose another --output")
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_refused(make_job, tmp_path):
    """Nothing is overwritten that this program has not written from the same file."""
    one = (str(tmp_path / "in" / "a.txt"),)
    options = make_job({"a.txt": b"x\n"}, input=one)
    for folder in (str(tmp_path / "in"), str(tmp_path / "link")):
        os.symlink(tmp_path / "in", tmp_path / "link") if folder.endswith("link") else None
        refused(make_job(input=one, output=folder), "is in --output itself")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_bytes(b"mine")
    refused(options, "out/a.txt exists, and is not as this program has written it: remove it")
    (tmp_path / "out" / "a.txt").unlink()
    assert run_all(options, Capitals()) == 0
    other = tmp_path / "other" / "a.txt"
    other.write_bytes(b"y\n")
    refused(make_job(input=(str(other),)), "translation of .*in/a.txt, not of .*two inputs cannot")
    os.truncate(tmp_path / "out" / "a.txt", 1)
    refused(options, "out/a.txt exists, and is not as this program has written it")


def test_ending_gz_in_capitals_and_line_ends(make_job, tmp_path):
    files = {"a.TXT.GZ": gzip.compress(b"a\r\nb"), "b.gz": gzip.compress(b""), "c.gz": b""}
    assert run_all(make_job(files), Capitals()) == 0
    found = [gzip.decompress((tmp_path / "out" / name).read_bytes()) for name in files]
    assert found == [b"A\nB\n", b"", b""]


def find_engine(program):
    """Returns the Python of an environment with the engine."""
    if not (python := os.environ.get(ENGINES[program])):
        pytest.skip(f"{ENGINES[program]} is not set: see `make ordeal`")
    return python


@pytest.mark.ordeal
@pytest.mark.parametrize("program", ENGINES)
def test_engines(program, toy_version, lines, tmp_path):
    """Texts and tables, by processes that do not have this package."""
    python = find_engine(program)
    write_texts(tmp_path / "in", lines)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, EXPORT / "bulk" / program, "--model", toy_version, "--shard-rows", "17"]

    def run(status, *options):
        result = child_process.run(
            [*command, *options], env=environment, cwd=tmp_path, capture_output=True, timeout=600
        )
        error = result.stderr.decode()
        assert result.returncode == status, error[-3000:]
        return error

    texts = ["--input", tmp_path / "in" / "*", "--output", tmp_path / "out"]
    error = run(1, *texts, "--feild", "body")
    assert "Unknown option --feild" in error and "Traceback" not in error
    error = run(1, "--input", "none", "--output", "out")
    assert "none matches no file" in error and "Traceback" not in error
    run(0, *texts)
    check_texts(tmp_path / "out", translate(lines))
    # A file that has changed is translated again.
    (tmp_path / "in" / "a.txt").write_bytes(b"\n".join([b"new", *lines]))
    assert "a.txt has changed since it was translated" in run(0, *texts)
    check_texts(tmp_path / "out", translate([b"new", *lines]), translate(lines))
    # One of two files is wrong.
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "A"}')
    (tmp_path / "b.jsonl").write_bytes(b'{"body": "A"}\n' * 2)
    error = run(1, "--input", "a.jsonl", "b.jsonl", "--output", "json", "--format", "jsonl")
    assert "Line 1 of b.jsonl is not a JSON object with a string 'text'" in error
    assert "b.jsonl: 0 lines translated, 0 copied, 2 failed\n1 of 2 files translated" in error
    assert os.listdir(tmp_path / "json") == ["a.jsonl", shards.STATE]

    child_process.run([python, "-c", WRITE_TABLE, tmp_path], check=True)
    tables = ["--input", tmp_path / "*.parquet", "--output", tmp_path / "tables"]
    run(0, *tables, "--format", "parquet")
    found = child_process.run([python, "-c", READ_TABLE, tmp_path / "tables"], capture_output=True)
    rows = json.loads(found.stdout)
    expected = [text.decode() for text in translate([b"A", b"AB", b"ABC"] * 20)]
    assert [row["translation"] for row in rows if row["text"]] == expected
    assert [row["translation"] for row in rows if not row["text"]] == [None]
    assert [row["n"] for row in rows] == list(range(61))


@pytest.mark.ordeal
@pytest.mark.parametrize("program", ENGINES)
def test_tables(program, tmp_path):
    """Kinds of columns, by a process that has pyarrow."""
    script = [SUPPORT / "bulk_tables.py", EXPORT / "bulk", tmp_path]
    done = child_process.run([find_engine(program), *script], capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = json.loads(done.stdout)
    names = ["text", "translation", "log_prob"]
    rows = [("a", "A", -1.0), ("", "", -1.0), (None, None, None), ("b", "B", -1.0)]
    expected = ["", [names, [dict(zip(names, row, strict=True)) for row in rows]]]
    for kind in ("string", "large_string", "dictionary"):
        assert found[kind] == expected, kind
    assert found["none"] == ["", [names, []]]
    for kind, message in REFUSED_TABLES.items():
        assert message in found[kind][0] and found[kind][1] is None, found[kind]


REFUSED_TABLES = {
    "lists": "its column 'text' has the type list<element: string>, expected strings",
    "numbers": "has the type int64",
    "bytes": "has the type binary",
    "nested": "it has 0 columns 'text' among x.",
    "missing": "it has 0 columns 'text' among body.",
    "translated": "it already has 'translation': choose another --output-field.",
    "scored": "it already has 'log_prob': rename it.",
}
WRITE_TABLE = """
import sys, pyarrow, pyarrow.parquet
table = pyarrow.table({"n": range(61), "text": ["A", "AB", "ABC"] * 20 + [None]})
pyarrow.parquet.write_table(table, f"{sys.argv[1]}/a.parquet", row_group_size=25)
pyarrow.parquet.write_table(table.slice(0, 0), f"{sys.argv[1]}/empty.parquet")
"""
READ_TABLE = """
import sys, json, pyarrow.parquet
print(json.dumps(pyarrow.parquet.read_table(f"{sys.argv[1]}/a.parquet").to_pylist()))
"""
