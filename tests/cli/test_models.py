"""`export`, `check`, `attention` and `plot` as a user types them."""

import json
import shutil

import numpy as np

import keras_transformer as kt
from keras_transformer.tools import plots
from tests.support.command_line import refused, run, sentences_before_tensorflow, succeeds
from tests.support.paths import PATTERN


def test_export_and_check(trained_run, tmp_path):
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
    (path / "variables" / "variables.index").unlink()
    result = run("check", path)
    assert result.returncode == 1 and b"variables.index is missing" in result.stdout


def test_export_for_another_engine(random_run, tmp_path):
    result = succeeds("export", random_run, tmp_path / "ct2", "--format", "ctranslate2")
    assert result.stdout.decode().strip() == str(tmp_path / "ct2")
    names = {path.name for path in (tmp_path / "ct2").iterdir()}
    assert {"model.bin", "config.json", "source.spm", "target.spm"} <= names


def test_maps_of_a_run(random_run, monkeypatch, tmp_path):
    drawn, plot = [], plots.plot_attention
    monkeypatch.setattr(plots, "plot_attention", lambda *x: drawn.append(x) or plot(*x))
    options = ["--layers", "3", "1", "--heads", "2", "--kind", "decoder", "--target", "ABC"]
    for name, begin, more in (("map.png", b"\x89PNG", []), ("map.svg", b"<?xml", options)):
        result = succeeds("attention", random_run, "abc", "--output", tmp_path / name, *more)
        assert result.stdout.decode() == f"{tmp_path / name}\n"
        assert (tmp_path / name).read_bytes().startswith(begin)
    assert drawn[0][-1] == [f"layer {i}, head {j}" for i in (1, 2, 3) for j in (1, 2)]
    translator = kt.load(random_run)
    translator.run_eagerly = True
    maps = kt.attention_maps(translator, "abc", "ABC")
    scores, *labels, titles = drawn[1]
    np.testing.assert_allclose(scores, maps.scores["decoder"][[2, 0], 1:], atol=1e-5)
    assert labels == list(maps.labels("decoder"))
    assert titles == ["layer 3, head 2", "layer 1, head 2"]
    refused(["attention", random_run, " "], "the text is empty")
    refused(["attention", random_run, "a", "--kind", "self"], "choose from cross, encoder, deco")


def test_plot_of_two_runs(trained_run, tmp_path):
    output, other = tmp_path / "picture.png", tmp_path / "other"
    other.mkdir()
    shutil.copy(trained_run / "history.csv", other)
    assert succeeds("plot", trained_run, other, "--output", output).stdout.decode() == f"{output}\n"
    assert output.read_bytes().startswith(b"\x89PNG")


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
