"""`export` and `check` as a user types them."""

import dataclasses
import json
import shutil

import pytest

from keras_transformer import load
from keras_transformer.presets import ExportConfig
from keras_transformer.runs.run import Run
from keras_transformer.serving.versions import describe
from tests.support.command_line import refused, run


def test_check_an_export(reverse_run, tmp_path):
    folder, _ = reverse_run
    result = run("export", folder / "run", tmp_path / "models", "--signatures", "score")
    assert result.returncode == 0, result.stderr.decode()
    path = tmp_path / "models" / "1"
    card = json.loads((path / "model.json").read_text())
    assert list(card["signatures"]) == ["serving_default", "score"]
    assert card["data"]["train"]["pairs"] == 60 and len(card["data"]["train"]["sha256"]) == 64
    assert card["metrics"]["val_loss"] > 0 and card["recipe"]["epochs"] == 2
    assert str(folder) not in json.dumps(card)
    table = result.stderr.decode()
    result = run("check", tmp_path / "models")
    assert result.returncode == 0 and result.stdout.count(b" ok ") == 8 == table.count(" ok ")
    assert result.stdout.startswith(f"{path}\n".encode())
    (path / "variables" / "variables.index").unlink()
    result = run("check", path)
    assert result.returncode == 1 and b"variables.index is missing" in result.stdout


def types_in(value):
    yield type(value)
    if isinstance(value, (dict, list, tuple)):
        for part in [*value.values(), *value] if isinstance(value, dict) else value:
            yield from types_in(part)


def test_the_card_of_a_run_is_made_of_plain_objects(reverse_run):
    """TensorFlow's wrapper of a dict cannot be written as JSON by every version of Python."""
    translator = load(reverse_run[0] / "run")
    card = describe(translator, dict, (), ExportConfig(signatures=()), [])
    assert card["recipe"] == translator.card["recipe"] and card["recipe"]["epochs"] == 2
    plain = {dict, list, tuple, str, int, float, bool, type(None)}
    assert set(types_in([card, translator.card])) <= plain


def test_evaluate_takes_the_tokenizer_of_the_run(reverse_run, tmp_path):
    folder, _ = reverse_run
    run_dir = shutil.copytree(folder / "run", tmp_path / "run")
    config = dataclasses.replace(Run(run_dir).read_config(), bleu_tokenize="char")
    Run(run_dir).write_config(config)
    command = ["evaluate", run_dir, "--source", folder / "pairs.tsv", "--n-bootstrap", "0"]
    for options, name in (([], "char"), (["--bleu-tokenize", "13a"], "13a")):
        report = json.loads(run(*command, *options, "--json").stdout)
        assert f"tok:{name}|" in report["signature"]


def test_export_for_another_engine(reverse_run, tmp_path):
    folder, _ = reverse_run
    result = run("export", folder / "run", tmp_path / "ct2", "--format", "ctranslate2")
    assert result.stdout.decode().strip() == str(tmp_path / "ct2")
    names = {path.name for path in (tmp_path / "ct2").iterdir()}
    assert {"model.bin", "config.json", "source.spm", "target.spm"} <= names


MISTAKES = {
    "signature": (
        ["export", "run", "base", "--signatures", "beams"],
        "Unknown signature 'beams'",
    ),
    "precision": (
        ["export", "run", "base", "--precision", "int4"],
        "precision must be one of float32, bfloat16, int8",
    ),
    "format": (
        ["export", "run", "base", "--format", "onnx"],
        "format must be saved_model or ctranslate2",
    ),
    "options of the other format": (
        ["export", "run", "base", "--format", "ctranslate2", "--precision", "int8"],
        "--format ctranslate2 has no further options",
    ),
    "nothing to check": (["check", "."], "does not contain a SavedModel"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gets_one_sentence(name, reverse_run, monkeypatch):
    folder, _ = reverse_run
    monkeypatch.chdir(folder)
    arguments, message = MISTAKES[name]
    before = sorted(folder.rglob("*"))
    refused(arguments, message)
    assert sorted(folder.rglob("*")) == before, "something was written"


@pytest.mark.parametrize("command", ["check", "translate"])
def test_a_broken_version_beside_a_sound_one_is_named(command, tmp_path):
    for name in ("1/saved_model.pb", "2/half"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    refused([command, tmp_path], f"{tmp_path / '2'} does not contain a SavedModel")
