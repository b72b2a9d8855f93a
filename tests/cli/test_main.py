"""Command lines are read from the signatures of functions; help texts are for people."""

import re
from typing import Annotated, Any

import pytest

import keras_transformer
from keras_transformer.cli.main import COMMANDS, call_command
from keras_transformer.presets import PRESETS, ModelConfig, SearchConfig, change
from tests.support.command_line import python, refused, run, succeeds
from tests.support.paths import FIXTURES


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


def test_what_is_typed():
    for words, expected in (
        ("", {}),
        ("--number none --words none", {"number": None, "words": ()}),
        ("--number None --words --word None", {"number": None, "words": (), "word": None}),
        ("--number=5 --words b c --word none", {"number": 5, "words": ("b", "c"), "word": "none"}),
        ("--words b --flag --words c d", {"words": ("b", "c", "d"), "flag": True}),
        ("--rates 1 2e-1", {"rates": (1.0, 0.2)}),
        ("--d_model 8 --norm=pre", {"sizes": {"d_model": 8, "norm": "pre"}}),
        ("--sample --seed 2", {"search": {"sample": True, "seed": 2}}),
    ):
        for line in (["p", *words.split()], [*words.split(), "--", "p"]):
            CALLS.clear()
            call_command("this", command, line)
            assert CALLS == [expected]


def test_a_mistake_is_one_sentence():
    for words, message in (
        ("p --number x", "--number must be a whole number or none, received 'x'; see"),
        ("p --rates 1 y", "--rates must be a number or none, received 'y'"),
        ("p --number", "--number needs a value"),
        ("p --nmber 5", "unknown option --nmber: did you mean --number"),
        ("p --xyzzy", "unknown option --xyzzy: see keras-transformer this --help."),
        ("p --num 5", "unknown option --num: did you mean --num"),  # no abbreviations
        ("p q", "unexpected argument 'q'"),
        ("--number 5", "PATH is missing"),
    ):
        with pytest.raises(ValueError) as error:
            call_command("this", command, words.split())
        assert message in str(error.value) and "\n" not in str(error.value)


def test_commands_are_suggested_and_required_options_named():
    refused(["trian"], "unknown command trian: did you mean train? See keras-transformer --help.")
    refused(["train"], "--output is missing (directory of the run to create or resume): see")
    refused(["train", "--no-jit-compile"], "--output is missing")


def test_another_backend_is_refused(monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "torch")
    refused(["evaluate", "run"], "Keras' TensorFlow backend, received torch: unset KERAS_BACKEND")


def test_the_version_and_the_list_of_commands_are_short():
    version = f"keras-transformer {keras_transformer.__version__}\n"
    assert run("--version").stdout.decode() == version
    text = run("--help").stdout.decode()
    assert text.startswith("usage: keras-transformer ") and run().stdout.decode() == text
    assert set(COMMANDS) <= set(re.findall(r"^  (\w+) ", text, flags=re.MULTILINE))
    assert "model.json" not in text and "model.json" in run("export", "--help").stdout.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_for_people(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = succeeds(name, "--help").stdout.decode()
    assert text.startswith(f"usage: keras-transformer {name}")
    assert max(map(len, text.splitlines())) <= 100
    for word in ("None", "True", "False", "(default: )", "()", "%%"):
        assert word not in text


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


def test_help_loads_no_large_module():
    code = """
import sys
sys.argv = ["keras-transformer"]
from keras_transformer.cli.main import COMMANDS, run
for words in [[], *([name] for name in COMMANDS)]:
    run([*words, "--help"])
    assert not {"tensorflow", "keras", "numpy", "yaml"} & set(sys.modules), words
"""
    assert "--epochs" in python("-c", code)


def test_mistakes_get_one_sentence(random_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none").mkdir()
    (tmp_path / "long").write_text("A\n" + "A" * 12 + "\n")
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    before = sorted(tmp_path.rglob("*"))
    places = {"RUN": random_run, "DATES": FIXTURES / "format-1" / "run"}  # which are no dates
    for line, message in (
        ("translate RUN --n-best 3 --beam-size 2", "from 1 to the beam size, 2, unless"),
        ("translate RUN --field a", "--field and --output-field need --format jsonl"),
        ("translate RUN --format xml", "--format must be text or jsonl, received 'xml'"),
        ("translate RUN --resume none", "is not a file, so it cannot be resumed"),
        ("translate RUN --resume no/b", "no/b cannot be written: No such"),
        ("align RUN --source pairs.tsv --heads 3", "Unknown head 3: choose from 1 to 2"),
        ("evaluate DATES", "was not trained on the built-in dates"),
        ("evaluate RUN --target long", "--source is missing"),
        ("evaluate long --source pairs.tsv --beam-size 5", "long is a file of translations: leave"),
        ("export RUN base --examples pairs.tsv --examples-target long", "omit --examples-target"),
        ("export RUN base --examples-target x", "--examples is missing"),
        ("export RUN RUN", "is a run: give the directory of the model's versions last"),
        ("export RUN base --format onnx", "format must be saved_model or ctranslate2"),
        ("export RUN base --format ctranslate2 --precision int8", "has no further options"),
        ("plot --output x.png", "RUN is missing"),
    ):
        refused([places.get(word, word) for word in line.split()], message, b"a\nb\n")
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


# Which configuration the commands that create runs are given.
def test_a_first_training_is_explained(seen, tmp_path):
    own = ["--train-source", tmp_path / "text.tsv", "--valid-fraction", "0.5"]
    for options, message in (
        ([], b""),
        (own, b"warning: the default, --preset dates, splits text into characters"),
        ([*own, "--preset", "tiny"], b""),
        ([*own, "--model-type", "char"], b""),
    ):
        said = succeeds("train", "--output", tmp_path / "run", *options).stderr
        assert said.startswith(message) and bool(message) == bool(said)


def test_a_file_may_need_what_the_options_add(seen, tmp_path):
    """A configuration is checked as a whole: neither has to be valid without the other."""
    (tmp_path / "file.yaml").write_text("format: 1\nfreeze: [encoder]\nmodel: {d_model: 100}\n")
    words = ["train", "--output", "x", "--config", tmp_path / "file.yaml"]
    assert (run(*words).returncode, seen) == (2, [])
    succeeds(*words, "--num-heads", "5", "--start-from", "run")
    model, freeze = seen[0].model, seen[0].freeze
    assert (model.d_model, model.num_heads, freeze) == (100, 5, ("encoder",))


def test_config_is_what_train_takes(seen, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_bytes(succeeds("config", "--preset", "tiny").stdout)
    succeeds("train", "--output", "x", "--config", path, "--epochs", "7")
    assert seen == [change(PRESETS["tiny"], {"epochs": 7})]
    refused(["config", "--preset", "huge"], "Unknown preset 'huge'")
