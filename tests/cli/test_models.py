"""`export`, `check`, `attention` and `plot` as a user types them."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tools import plots
from tests.support.command_line import refused, run, sentences_before_tensorflow, succeeds
from tests.support.paths import PATTERN

HISTORY = "step,target_tokens,minutes,learning_rate,loss,val_loss,val_bleu,val_chrf\n"
HISTORY += "10,500,0.1,0.01,4.5,4.75,,\n"


def test_export_check_and_evaluate(trained_run, trained_config, tmp_path):
    models = tmp_path / PATTERN
    result, path = succeeds("export", trained_run, models, "--signatures", "score"), models / "1"
    assert result.stdout.decode() == f"{path}\n"
    card = json.loads((path / "model.json").read_text())
    assert list(card["signatures"]) == ["serving_default", "score"]
    assert card["data"]["train"]["pairs"] == 300 and len(card["data"]["train"]["sha256"]) == 64
    assert card["metrics"]["val_loss"] > 0 and card["recipe"]["epochs"] == 3
    assert str(trained_run) not in json.dumps(card)
    checked = succeeds("check", models).stdout
    assert checked.startswith(f"{path}\n".encode())
    assert checked.count(b" ok ") == 8 == result.stderr.count(b" ok ")
    reports = []
    texts = ["--source", trained_config.valid_source, "--target", trained_config.valid_target]
    for model in (trained_run, path):
        result = succeeds("evaluate", model, *texts, "--json", "--n-bootstrap", "0")
        reports.append(json.loads(result.stdout))
    assert all(report.pop("lines_per_second") > 0 for report in reports)
    assert reports[0] == reports[1] and reports[0]["sentences"] == 40
    refused(["translate", path, "--sample"], "1 has no signature sample", b"a\n")
    (path / "variables" / "variables.index").unlink()
    result = run("check", path)
    assert result.returncode == 1 and b"variables.index is missing" in result.stdout


def test_export_for_another_engine(random_run, tmp_path):
    result = succeeds("export", random_run, tmp_path / "ct2", "--format", "ctranslate2")
    assert result.stdout.decode().strip() == str(tmp_path / "ct2")
    names = {path.name for path in (tmp_path / "ct2").iterdir()}
    assert {"model.bin", "config.json", "source.spm", "target.spm"} <= names


@pytest.fixture
def drawn(monkeypatch):
    """What `plot_attention` is called with; it draws all the same."""
    calls, plot = [], plots.plot_attention
    monkeypatch.setattr(plots, "plot_attention", lambda *x: calls.append(x) or plot(*x))
    return calls


def test_maps_of_a_run(random_run, drawn, tmp_path):
    output = tmp_path / "map.png"
    result = succeeds("attention", random_run, "hgf", "--output", output)
    assert result.stdout.decode() == f"{output}\n"
    assert output.read_bytes().startswith(b"\x89PNG")
    options = ["--layers", "3", "1", "--heads", "2", "--kind", "decoder", "--target", "ABC"]
    succeeds("attention", random_run, "abc", "--output", tmp_path / "map.svg", *options)
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()
    translator = kt.load(random_run)
    translator.run_eagerly = True
    maps = kt.attention_maps(translator, "hgf")
    scores, *labels, titles = drawn[0]
    np.testing.assert_allclose(scores, maps.scores["cross"], atol=1e-5)
    assert labels == [maps.source_tokens, maps.target_tokens]
    assert titles == [f"layer {i}, head {j}" for i in (1, 2, 3) for j in (1, 2)]
    maps = kt.attention_maps(translator, "abc", "ABC")
    scores, *labels, titles = drawn[1]
    np.testing.assert_allclose(scores, maps.scores["decoder"][[2, 0], 1:], atol=1e-5)
    assert labels == list(maps.labels("decoder"))
    assert titles == ["layer 3, head 2", "layer 1, head 2"]
    refused(["attention", random_run, " "], "the text is empty")
    refused(["attention", random_run, "a", "--kind", "self"], "choose from cross, encoder, deco")


def test_plot_of_two_runs(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.csv").write_text(HISTORY)
    output = tmp_path / "picture.png"
    result = succeeds("plot", tmp_path / "one", tmp_path / "two", "--output", output)
    assert result.stdout.decode() == f"{output}\n"
    assert output.read_bytes().startswith(b"\x89PNG")
    output = tmp_path / f"{'a' * 251}.png"
    words = ["plot", tmp_path / "one", "--output", output]
    refused(words, f"{output} cannot be written (File name too long)")


def test_mistakes_do_not_wait_for_tensorflow(tmp_path):
    (tmp_path / "text").write_text("one\ntwo\n")
    text, nowhere = tmp_path / "text", tmp_path / "nowhere"
    files = ["--source", text, "--target", text]
    commands = [["attention", tmp_path, "a", "--output", "x.xyz"], ["evaluate", text, *files]]
    commands += [["translate", nowhere], ["attention", nowhere, "a"]]
    commands += [[name, nowhere, *files] for name in ("evaluate", "score", "align")]
    unknown, *sentences = sentences_before_tensorflow(commands)
    assert "The format of x.xyz is unknown" in unknown and len(sentences) == 5
    assert all(one.startswith(f"keras-transformer: {nowhere} is not") for one in sentences)


def test_a_broken_version_beside_a_sound_one_is_named(tmp_path):
    for name in ("1/saved_model.pb", "2/half"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    for command in ("check", "translate"):
        refused([command, tmp_path], f"{tmp_path / '2'} does not contain a SavedModel")
