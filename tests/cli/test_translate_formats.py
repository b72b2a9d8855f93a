"""translate --format jsonl and tsv: other fields are copied, so that the output can be joined."""

import json

import pytest

from keras_transformer.runs import opening
from keras_transformer.translation import sentences
from tests.support.command_line import refused, run

TEXTS = ["ABC", "", "DA FE", "B\u00e9\U0001f642"]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(sentences, "FIRST_WINDOW", 2)
    monkeypatch.setattr(opening, "EAGER_SENTENCES", 100)  # graphs would take longer to make


def translated(run_path, *options, stdin):
    result = run("translate", run_path, *options, stdin=stdin)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


@pytest.fixture(scope="module")
def expected(random_run):
    stdin = "".join(f"{text}\n" for text in TEXTS).encode()
    return translated(random_run, stdin=stdin).decode().splitlines()


def json_lines(field="text"):
    rows = [{"id": i, field: text, "price": 0.5} for i, text in enumerate(TEXTS)]
    return [json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)]


def test_json_lines(random_run, expected):
    lines = json_lines()
    # What JSON can express and parsing would change: an exponent, a repeated name, an escape.
    lines[0] = '{ "n": 1E400, "n": 2, "s": "\\u00e9", "text": "ABC" } '
    lines.insert(1, "")
    stdin = "\n".join(lines).encode()
    output = translated(random_run, "--format", "jsonl", stdin=stdin).decode().splitlines()
    assert output[1] == ""
    assert output[0].startswith('{ "n": 1E400, "n": 2, "s": "\\u00e9", "text": "ABC", ')
    rows = [json.loads(line) for line in output if line]
    assert [row["translation"] for row in rows] == expected
    assert [row["text"] for row in rows] == TEXTS
    assert all(line.startswith(old.rstrip("} ")) for line, old in zip(output, lines, strict=True))


def test_json_lines_with_n_best(random_run, expected):
    stdin = "\n".join(json_lines("en")).encode()
    options = ["--format", "jsonl", "--field", "en", "--output-field", "de"]
    search = ["--beam-size", "3", "--n-best", "2"]
    output = translated(random_run, *options, *search, stdin=stdin).splitlines()
    plain = translated(random_run, *search, stdin="\n".join(TEXTS).encode()).decode()
    found = [
        (number, hypothesis["text"])
        for number, line in enumerate(output)
        for hypothesis in json.loads(line)["de"]
    ]
    lines = [line.split(" ||| ") for line in plain.splitlines()]
    assert found == [(int(number), text) for number, text, _ in lines]
    assert json.loads(output[0])["de"][0].keys() == {"text", "log_prob", "score"}


@pytest.mark.parametrize("named", [True, False])
def test_table_that_is_resumed_anywhere(random_run, expected, named, tmp_path):
    header = ["id\ttext\tx"] if named else []
    lines = header + [f"{i}\t{text}\tü" for i, text in enumerate(TEXTS)]
    stdin = "\r\n".join(lines).encode()
    options = ["--format", "tsv", *([] if named else ["--field", "2"])]
    whole = translated(random_run, *options, stdin=stdin)
    added = ["translation"] * named + expected
    assert whole.decode().splitlines() == [
        f"{line}\t{text}" for line, text in zip(lines, added, strict=True)
    ]
    for share in (0.0, 0.1, 0.6):
        (tmp_path / "out").write_bytes(whole[: round(share * len(whole))])
        translated(random_run, *options, "--resume", tmp_path / "out", stdin=stdin)
        assert (tmp_path / "out").read_bytes() == whole


def test_resumed_json_lines(random_run, tmp_path):
    lines = json_lines()
    lines.insert(2, "")
    options = ["--format", "jsonl"]
    whole = translated(random_run, *options, stdin="\n".join(lines).encode())
    for kept in (1, 3, 5):
        (tmp_path / "out").write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
        stdin = " \r\n".join(lines).encode()  # spaces around an object do not count
        translated(random_run, *options, "--resume", tmp_path / "out", stdin=stdin)
        assert (tmp_path / "out").read_bytes() == whole


TABLE = [f"{i}\t{text}" for i, text in enumerate(TEXTS)]
CHANGES = {
    "inserted": (lambda rows: [rows[-1], *rows], 1),
    "removed": (lambda rows: rows[1:], 1),
    "repeated": (lambda rows: [rows[0], *rows], 2),
    "edited": (lambda rows: [*rows[:2], rows[2].replace("DA FE", "DA"), *rows[3:]], 3),
    "blank": (lambda rows: [*rows[:2], "", *rows[2:]], 3),
    "a column less": (lambda rows: [*rows[:2], rows[2].rpartition("\t")[0], *rows[3:]], 3),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", ["jsonl", "tsv", "named"])
def test_output_of_other_lines_is_refused(format, change, random_run, tmp_path):
    """What was copied into the output is compared with the input."""
    rows = {"jsonl": json_lines(), "tsv": TABLE, "named": TABLE}[format]
    header = ["id\ttext"] if format == "named" else []
    options = ["--format", "jsonl"] if format == "jsonl" else ["--format", "tsv"]
    options += ["--field", "2"] if format == "tsv" else []
    whole = translated(random_run, *options, stdin="\n".join(header + rows).encode())
    kept = b"".join(whole.splitlines(keepends=True)[: len(header) + 3])
    (tmp_path / "out").write_bytes(kept + b"torn")
    changed, row = CHANGES[change]
    stdin = "\n".join(header + changed(rows)).encode()
    row += len(header)
    message = f"line {row} is not line {row} of stdin with its translation: give the same input"
    refused(["translate", random_run, *options, "--resume", tmp_path / "out"], message, stdin)
    assert (tmp_path / "out").read_bytes() == kept + b"torn"


def test_lines_before_an_invalid_one_are_translated(random_run, expected, tmp_path):
    lines = json_lines()
    lines[3] = '{"text": 3}'
    command = ["translate", random_run, "--format", "jsonl", "--resume", tmp_path / "out"]
    refused(
        command, "Line 4 of stdin is not a JSON object with a string", "\n".join(lines).encode()
    )
    output = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["translation"] for line in output] == expected[:3]


MISTAKES = [
    (["--field", "a"], b"", "--field and --output-field need --format"),
    (["--format", "xml"], b"", "--format must be one of text, jsonl, tsv, received 'xml'"),
    (["--format", "tsv", "--n-best", "1"], b"", "--n-best needs --format text or jsonl"),
    (["--format", "tsv", "--field", "0"], b"", "a column from 1, received 0"),
    (["--format", "tsv"], b"id\ten\n", "has no column 'text', but 'id, en'"),
    (["--format", "tsv"], b"translation\ttext\n", "already has a column 'translation'"),
    (["--format", "tsv", "--field", "3"], b"a\tb\n", "Line 1 of stdin has 2 of at least 3"),
    (["--format", "jsonl"], b'{"text": "A", "translation": 1}', "already has 'translation'"),
    (["--format", "jsonl"], b"[" * 100_000, "Line 1 of stdin is not valid JSON"),
]


@pytest.mark.parametrize("options, stdin, message", MISTAKES)
def test_mistakes(random_run, options, stdin, message):
    refused(["translate", random_run, *options], message, stdin)
