"""Command lines are read from the signatures of functions, and help texts are for people."""

import re
from typing import Annotated, Any

import pytest

import keras_transformer
from keras_transformer.cli.main import COMMANDS, call_command
from keras_transformer.presets import ModelConfig, SearchConfig
from tests.support.command_line import refused, run, run_process


def command(
    path: Annotated[str, "a path"],
    /,
    number: Annotated[int | None, "none: all"] = 3,
    words: Annotated[tuple[str, ...], "some"] = ("a",),
    word: Annotated[str | None, "one"] = "b",
    rates: Annotated[tuple[float, ...], "some"] = (),
    flag: Annotated[bool, "yes or no"] = False,
    sizes: Annotated[dict[str, Any], ModelConfig] = {},  # noqa: B006
    *,
    search: Annotated[dict[str, Any], SearchConfig],
) -> None:
    """Do something."""
    CALLS.append({k: v for k, v in locals().items() if v != DEFAULTS[k]})


DEFAULTS = dict(path="p", number=3, words=("a",), word="b", rates=(), flag=False, sizes={})
DEFAULTS["search"] = {}
CALLS = []


@pytest.mark.parametrize(
    "words, expected",
    [
        ("", {}),
        ("--number none --words none", {"number": None, "words": ()}),
        ("--number None --words --word None", {"number": None, "words": (), "word": None}),
        ("--number=5 --words b c --word none", {"number": 5, "words": ("b", "c"), "word": "none"}),
        ("--words b --flag --words c d", {"words": ("b", "c", "d"), "flag": True}),
        ("--rates 1 2e-1", {"rates": (1.0, 0.2)}),
        ("--d_model 8 --norm=pre", {"sizes": {"d_model": 8, "norm": "pre"}}),
        ("--beam_size 4", {"search": {"beam_size": 4}}),
        ("--sample --seed 2", {"search": {"sample": True, "seed": 2}}),
    ],
)
def test_what_is_typed(words, expected):
    for line in (["p", *words.split()], [*words.split(), "--", "p"]):
        CALLS.clear()
        call_command("this", command, line)
        assert CALLS == [expected]


@pytest.mark.parametrize(
    "words, message",
    [
        ("p --number x", "--number must be a whole number or none, received 'x'; see"),
        ("p --rates 1 y", "--rates must be a number or none, received 'y'"),
        ("p --number", "--number needs a value"),
        ("p --nmber 5", "unknown option --nmber: did you mean --number"),
        ("p --xyzzy", "unknown option --xyzzy: see keras-transformer this --help."),
        ("p --num 5", "unknown option --num: did you mean --num"),  # no abbreviations
        ("p q", "unexpected argument 'q'"),
        ("--number 5", "PATH is missing"),
    ],
)
def test_a_mistake_is_one_sentence(words, message):
    with pytest.raises(ValueError) as error:
        call_command("this", command, words.split())
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("words", [["trian"], ["train", "--train-sourc", "x"]])
def test_only_what_belongs_there_is_suggested(words):
    result = run(*words)
    error = result.stderr.decode()
    assert result.returncode == 2 and error.count("\n") == 1 and result.stdout == b""
    assert "did you mean train?" in error or "did you mean --train-source" in error


def test_a_first_training_is_explained(monkeypatch, tmp_path):
    """Without a choice of preset; a chosen one needs no explanation."""
    refused(["train"], "--output is missing (directory of the run to create or resume): see")
    monkeypatch.setattr("keras_transformer.train.train_run", lambda *_: None)
    (tmp_path / "text").write_text("a\tb\n")
    own = ["--train-source", tmp_path / "text.tsv", "--valid-fraction", "0.5"]
    (tmp_path / "text").rename(tmp_path / "text.tsv")
    for options, message in (
        ([], b""),
        (own, b"warning: the default, --preset dates, splits text into characters"),
        (["--preset", "dates"], b""),
        ([*own, "--preset", "tiny"], b""),
        ([*own, "--model-type", "char"], b""),
    ):
        result = run("train", "--output", tmp_path / "run", *options)
        assert result.returncode == 0 and result.stderr.startswith(message), result.stderr
        assert bool(message) == bool(result.stderr)


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "torch")
    refused(["evaluate", "run"], "Keras' TensorFlow backend, received torch: unset KERAS_BACKEND")


def test_version_of_the_module():
    result = run_process("--version")
    assert result.stdout.decode() == f"keras-transformer {keras_transformer.__version__}\n"


def test_the_list_of_commands_is_short():
    text = run("--help").stdout.decode()
    assert text.startswith("usage: keras-transformer ")
    assert "Train Transformers that translate text" in text
    assert set(COMMANDS) <= set(re.findall(r"^  (\w+) ", text, flags=re.MULTILINE))
    assert "model.json" not in text and "model.json" in run("export", "--help").stdout.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_for_people(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    result = run(name, "--help")
    text = result.stdout.decode()
    assert result.returncode == 0 and text.startswith(f"usage: keras-transformer {name}")
    for python in ("None", "True", "False", "(default: )", "()", "%%"):
        assert python not in text
    rows = text.splitlines()
    assert max(map(len, rows)) <= 100
    for i, row in enumerate(rows):
        if row.startswith("  --"):  # its help text stands beside the option, or below
            beside = re.split(r"  +", row.strip())[1:] or [rows[i + 1].strip()]
            assert beside[0] and not beside[0].startswith("(default"), row


def test_help_shows_the_defaults_of_what_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "file.yaml").write_text("format: 1\nmodel: {d_ff: 77}\nepochs: 5\n")
    for words, d_ff, epochs in (
        (["--preset", "tiny"], 256, 20),
        (["--config", tmp_path / "file.yaml", "--epochs", "6"], 77, 6),
        ([], 512, 3),
    ):
        text = run("train", *words, "--help").stdout.decode()
        assert re.search(rf"--d-ff .*\(default: {d_ff}\)", text)
        assert re.search(rf"--epochs .*\(default: {epochs}\)", text)


def test_a_file_may_need_what_the_options_add(tmp_path, monkeypatch):
    """A configuration is checked as a whole: neither has to be valid without the other."""
    seen = []
    checked = "keras_transformer.runs.training_data.check_training"
    monkeypatch.setattr(checked, lambda config, *_: seen.append(config))
    monkeypatch.setattr("keras_transformer.train.train_run", lambda *_: None)
    (tmp_path / "file.yaml").write_text("format: 1\nfreeze: [encoder]\nmodel: {d_model: 100}\n")
    words = ["train", "--output", "x", "--config", tmp_path / "file.yaml"]
    result = run(*words)
    assert (result.returncode, seen) == (2, [])
    assert run(*words, "--num-heads", "5", "--start-from", "run").returncode == 0
    assert (seen[0].model.d_model, seen[0].model.num_heads, seen[0].freeze) == (
        100,
        5,
        ("encoder",),
    )
