"""translate --format jsonl: other fields are copied, so that the output can be joined."""

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


CHANGES = {
    "inserted": (lambda rows: [rows[-1], *rows], 1),
    "removed": (lambda rows: rows[1:], 1),
    "repeated": (lambda rows: [rows[0], *rows], 2),
    "edited": (lambda rows: [*rows[:2], rows[2].replace("DA FE", "DA"), *rows[3:]], 3),
    "blank": (lambda rows: [*rows[:2], "", *rows[2:]], 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_output_of_other_lines_is_refused(change, random_run, tmp_path):
    """What was copied into the output is compared with the input."""
    rows, options = json_lines(), ["--format", "jsonl"]
    whole = translated(random_run, *options, stdin="\n".join(rows).encode())
    kept = b"".join(whole.splitlines(keepends=True)[:3])
    (tmp_path / "out").write_bytes(kept + b"torn")
    changed, row = CHANGES[change]
    stdin = "\n".join(changed(rows)).encode()
    message = f"has no translation of line {row} of stdin: give the same input"
    refused(["translate", random_run, *options, "--resume", tmp_path / "out"], message, stdin)
    assert (tmp_path / "out").read_bytes() == kept + b"torn"


def test_windows_before_an_invalid_line_are_translated(random_run, expected, tmp_path):
    lines = json_lines()
    lines[3] = '{"text": 3}'
    command = ["translate", random_run, "--format", "jsonl", "--resume", tmp_path / "out"]
    refused(command, "Line 4 of stdin is not an object with", "\n".join(lines).encode())
    output = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["translation"] for line in output] == expected[:2]


MISTAKES = [
    (["--field", "a"], b"", "--field and --output-field need --format jsonl"),
    (["--format", "xml"], b"", "--format must be text or jsonl, received 'xml'"),
    (["--format", "jsonl"], b'{"text": "A", "translation": 1}', "1 of stdin has 'translation'"),
    (["--format", "jsonl"], b"[" * 100_000, "Line 1 of stdin is not valid JSON"),
]


@pytest.mark.parametrize("options, stdin, message", MISTAKES)
def test_mistakes(random_run, options, stdin, message):
    refused(["translate", random_run, *options], message, stdin)
