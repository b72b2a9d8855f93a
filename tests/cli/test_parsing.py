"""Help texts read right, and what they say can be typed."""

import re
import sys

import pytest

import keras_transformer
from keras_transformer.cli.parsing import parse_command
from tests.cli.test_main import COMMANDS
from tests.support.command_line import run, run_process


def test_version_of_the_module():
    result = run_process("--version")
    assert result.stdout.decode() == f"keras-transformer {keras_transformer.__version__}\n"


def test_the_first_line_says_what_it_is_for():
    lines = run("--help").stdout.decode().splitlines()
    assert lines[0].startswith("usage: keras-transformer ")
    assert lines[2] == "Train Transformers that translate text; use, measure and export them."


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_for_people(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = run(command, "--help").stdout.decode()
    for python in ("None", "(default: )", "---", "  STR", "()", "options options"):
        assert python not in text.replace("─", ""), python
    rows = [re.sub(r"^│ ?|│$", "", line) for line in text.splitlines()]
    options = [i for i, row in enumerate(rows) if row.startswith("--")]
    for i in options:
        beside = re.split(r"  +", rows[i].strip())[1:]  # what stands beside the option, or below
        assert not (beside or [rows[i + 1].strip()])[0].startswith("(default"), rows[i]
        if rows[i].startswith("--no-"):
            assert "default: True" not in " ".join(rows[i : i + 2]), rows[i]


def test_only_the_list_of_commands_is_short():
    assert "MODEL.md" not in run("--help").stdout.decode()
    assert "MODEL.md" in run("export", "--help").stdout.decode()


@pytest.mark.parametrize(
    "words, expected",
    [
        ("", (3, ("a",), "b")),
        ("--number none --words none", (None, (), "b")),
        ("--number None --words --word None", (None, (), None)),
        ("--number 5 --words b c --word none", (5, ("b", "c"), "none")),
    ],
)
def test_what_has_no_value_is_none(words, expected, monkeypatch):
    def command(number: int | None = 3, words: tuple[str, ...] = ("a",), word: str | None = "b"):
        return number, words, word

    monkeypatch.setattr(sys, "argv", ["keras-transformer", "this", *words.split()])
    assert parse_command({"this": command, "that": command}) == expected


def test_no_number(monkeypatch, capsys):
    def command(number: int | None = 3):
        raise AssertionError

    monkeypatch.setattr(sys, "argv", ["keras-transformer", "this", "--number", "x"])
    with pytest.raises(SystemExit):
        parse_command({"this": command, "that": command})
    assert "--number" in capsys.readouterr().err
