"""The command `attention`: pictures of what a run attends to."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tools import plots
from tests.support.command_line import refused, run, sentences_before_tensorflow


@pytest.fixture
def drawn(monkeypatch):
    """What `plot_attention` is called with; it draws all the same."""
    calls, plot = [], plots.plot_attention
    monkeypatch.setattr(plots, "plot_attention", lambda *x: calls.append(x) or plot(*x))
    return calls


def test_all_maps_of_a_run(random_run, drawn, tmp_path):
    output = tmp_path / "map.png"
    result = run("attention", random_run, "hgf", "--output", output)
    assert (result.returncode, result.stdout.decode()) == (0, f"{output}\n"), result.stderr
    assert output.read_bytes().startswith(b"\x89PNG")
    ((scores, keys, queries, titles),) = drawn
    maps = kt.attention_maps(kt.load(random_run), "hgf")
    np.testing.assert_allclose(scores, maps.scores["cross"], atol=1e-5)
    assert (keys, queries) == (maps.source_tokens, maps.target_tokens)
    assert titles == [f"layer {i}, head {j}" for i in (1, 2, 3) for j in (1, 2)]


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_some_maps_of_a_run(kind, random_run, drawn, tmp_path):
    options = ["--layers", "3", "1", "--heads", "2", "--kind", kind, "--target", "ABC"]
    result = run("attention", random_run, "abc", "--output", tmp_path / "map.svg", *options)
    assert result.returncode == 0, result.stderr
    assert b"<svg" in (tmp_path / "map.svg").read_bytes()
    ((scores, keys, queries, titles),) = drawn
    maps = kt.attention_maps(kt.load(random_run), "abc", "ABC")
    np.testing.assert_allclose(scores, maps.scores[kind][[2, 0], 1:], atol=1e-5)
    assert (keys, queries) == maps.labels(kind)
    assert titles == ["layer 3, head 2", "layer 1, head 2"]


MISTAKES = {
    "layer": (["--layers", "4"], "Unknown layer 4: choose from 1 to 3"),
    "head": (["--heads", "0"], "Unknown head 0: choose from 1 to 2"),
    "kind": (["--kind", "self"], "kind is 'self': choose from cross, encoder, decoder"),
    "format": (["--output", "map.xyz"], "The format of map.xyz is unknown: its name must end"),
    "folder": (["--output", "nowhere/map.png"], "the directory nowhere is missing"),
    "target": (["--target", "A" * 12], "max_length is 12."),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_get_one_sentence(name, random_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, message = MISTAKES[name]
    refused(["attention", random_run, "abc", *options], message)
    assert list(tmp_path.iterdir()) == []


def test_no_text(random_run, tmp_path):
    refused(["attention", random_run, " ", "--output", tmp_path / "x.png"], "the text is empty")


def test_mistakes_do_not_wait_for_tensorflow(tmp_path):
    commands = [["attention", tmp_path / "none", "a"]]
    commands.append(["attention", tmp_path, "a", "--output", "x.xyz"])
    missing, unknown = sentences_before_tensorflow(commands)
    assert "none is not a directory" in missing and "The format of x.xyz is unknown" in unknown


def test_a_picture_that_cannot_be_written_is_one_plain_sentence(random_run, tmp_path):
    """As on a file system that is read-only; here a name that is too long."""
    output = tmp_path / f"{'a' * 251}.png"
    columns = "step,target_tokens,minutes,learning_rate,loss,val_loss,val_bleu,val_chrf\n"
    (tmp_path / "history.csv").write_text(columns + "10,500,0.1,0.01,4.5,4.75,,\n")
    for command in (["plot", tmp_path], ["attention", random_run, "hgf"]):
        result = run(*command, "--output", output)
        error = result.stderr.decode()
        assert (result.returncode, error.count("cannot be written")) == (2, 1), error
        assert f"{output} cannot be written (File name too long)" in error and ".." not in error
