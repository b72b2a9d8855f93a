"""Bulk translation: the shards in this process; the engines in `make ordeal`."""

import gzip
import importlib.util
import json
import math
import os
import random
import sys

import pytest

from tests.support import child_process
from tests.support.paths import EXPORT
from tests.support.toy_translator import trained_translator

spec = importlib.util.spec_from_file_location("shards", EXPORT / "bulk" / "shards.py")
shards = importlib.util.module_from_spec(spec)
sys.modules["shards"] = shards  # for its dataclass
spec.loader.exec_module(shards)

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


def run_all(options):
    """What the engines do, in one process."""
    paths = shards.find_inputs(options)
    model = shards.Model(options)
    for path in paths:
        for shard in list(shards.read_shards(path, options)):
            if shard[2] is None:
                shards.finish_file(path, shard[1], options)
            else:
                shards.translate_shard(shard, model, options)
    with pytest.raises(SystemExit) as end:
        shards.exit_with_report(paths, options)
    return end.value.code


def make_options(toy_version, tmp_path, **options):
    pattern, output = str(tmp_path / "in" / "*"), str(tmp_path / "out")
    return shards.Options(str(toy_version), (pattern,), output, **{"shard_rows": 17} | options)


def write_texts(folder, lines):
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n")
    (folder / "empty.txt").write_bytes(b"")
    (folder / "z.txt.gz").write_bytes(gzip.compress(b"\n".join(lines[:20])))


def check_texts(folder, expected):
    assert (folder / "a.txt").read_bytes() == b"".join(line + b"\n" for line in expected)
    assert (folder / "empty.txt").read_bytes() == b""
    found = gzip.decompress((folder / "z.txt.gz").read_bytes())
    assert found == b"".join(line + b"\n" for line in expected[:20])


def test_text_equals_translate(toy_version, lines, tmp_path):
    write_texts(tmp_path / "in", lines)
    # Batches of one row by bytes, and of few rows: no row depends on the others.
    for batch in ({"batch_bytes": 1}, {"batch_rows": 7}):
        options = make_options(toy_version, tmp_path, **batch)
        assert run_all(options) == 0
        check_texts(tmp_path / "out", translate(lines))
        for name in ("a.txt", "empty.txt", "z.txt.gz"):
            (tmp_path / "out" / name).unlink()


def test_second_run_translates_what_is_missing(toy_version, lines, tmp_path):
    write_texts(tmp_path / "in", lines)
    options = make_options(toy_version, tmp_path)
    path = str(tmp_path / "in" / "a.txt")
    first, second, *_ = shards.read_shards(path, options)
    model = shards.Model(options)
    shards.translate_shard(first, model, options)
    (tmp_path / "out" / "empty.txt").write_bytes(b"done")
    assert [number for _, number, _ in shards.read_shards(path, options)] == [1, 2, 3, 4]
    mark = b"translated before\n" * 17
    (tmp_path / "out" / shards.UNFINISHED / "a.txt" / "0").write_bytes(mark)
    assert run_all(options) == 0
    assert (tmp_path / "out" / "a.txt").read_bytes().startswith(mark)
    assert (tmp_path / "out" / "empty.txt").read_bytes() == b"done"
    assert shards.find_inputs(options) == []
    with pytest.raises(ValueError, match="run with other options .* choose another --output"):
        shards.find_inputs(make_options(toy_version, tmp_path, signature="beam"))


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


def test_json_lines_and_invalid_rows(toy_version, lines, tmp_path):
    texts = [line.decode("utf-8", "replace") for line in lines]
    rows = [json.dumps({"n": i, "en": text}).encode() for i, text in enumerate(texts)]
    rows[5:5] = [b"", b"{", b'{"en": 3}', b'{"n": 1E400, "en": "AB" } ']
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join(rows))
    options = make_options(
        toy_version, tmp_path, format="jsonl", field="en", output_field="de", signature="beam"
    )
    assert run_all(options) == 0
    output = (tmp_path / "out" / "a.jsonl").read_bytes().splitlines()
    assert output[5:8] == rows[5:8]
    assert output[8].startswith(b'{"n": 1E400, "en": "AB", "de": "')
    found = [json.loads(row) for row in output[:5] + output[9:]]
    assert [(row["n"], row["en"]) for row in found] == list(enumerate(texts))
    model = shards.Model(options)
    expected = model([text.encode() for text in texts])
    assert [row["de"].encode() for row in found] == [text for text, _ in expected]
    assert [row["log_prob"] for row in found] == pytest.approx([x for _, x in expected], abs=1e-4)


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
]


@pytest.mark.parametrize("words, message", MISTAKES)
def test_mistakes(words, message, toy_version, capsys):
    with pytest.raises(SystemExit, match="2"):
        shards.parse_arguments("", ["--model", str(toy_version), *words])
    assert message in capsys.readouterr().err


def test_inputs_that_cannot_be_translated(toy_version, tmp_path):
    with pytest.raises(ValueError, match="matches no file: check the pattern"):
        shards.find_inputs(make_options(toy_version, tmp_path))
    for folder in ("in", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_bytes(b"A")
    patterns = str(tmp_path / "in" / "*"), str(tmp_path / "other" / "*")
    with pytest.raises(ValueError, match=r"Two input files are named a\.txt"):
        shards.find_inputs(shards.Options(str(toy_version), patterns, str(tmp_path / "out")))
    options = make_options(toy_version, tmp_path, signature="score")
    with pytest.raises(ValueError, match="has no signature nothing"):
        shards.Model(make_options(toy_version, tmp_path, signature="nothing"))
    assert options.signature == "score"


@pytest.mark.ordeal
@pytest.mark.parametrize("program", ENGINES)
def test_engines(program, toy_version, lines, tmp_path):
    """Texts and tables, by processes that do not have this package."""
    python = os.environ.get(ENGINES[program])
    if not python:
        pytest.skip(f"{ENGINES[program]} is not set: see `make ordeal`")
    write_texts(tmp_path / "in", lines)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [
        python,
        EXPORT / "bulk" / program,
        "--model",
        toy_version,
        "--output",
        tmp_path / "out",
    ]

    def run(*options):
        words = [*command, "--shard-rows", "17", *options]
        result = child_process.run(words, env=environment, cwd=tmp_path, capture_output=True)
        assert result.returncode == 0, result.stderr.decode()[-3000:]

    run("--input", tmp_path / "in" / "*")
    check_texts(tmp_path / "out", translate(lines))
    child_process.run([python, "-c", WRITE_TABLE, tmp_path], check=True)
    command[-1] = tmp_path / "tables"
    run("--input", tmp_path / "*.parquet", "--format", "parquet")
    found = child_process.run([python, "-c", READ_TABLE, tmp_path / "tables"], capture_output=True)
    rows = json.loads(found.stdout)
    expected = [text.decode() for text in translate([b"A", b"AB", b"ABC"] * 20)]
    assert [row["translation"] for row in rows if row["text"]] == expected
    assert [row["translation"] for row in rows if not row["text"]] == [None]
    assert [row["n"] for row in rows] == list(range(61))


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
