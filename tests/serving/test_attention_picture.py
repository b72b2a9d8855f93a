"""`keras-transformer attention` on an export: one map, the mean of a layer's heads."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.visualization import attention
from tests.support.command_line import run
from tests.support.toy_translator import trained_translator


def test_picture(toy_version, monkeypatch, tmp_path):
    calls, plot = [], attention.plot_attention
    monkeypatch.setattr(attention, "plot_attention", lambda *x: calls.append(x) or plot(*x))
    result = run("attention", toy_version, "hgf", "--output", tmp_path / "map.png")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    ((scores, keys, queries, titles),) = calls
    maps = kt.attention_maps(trained_translator(), "hgf")
    assert (keys, queries) == (maps.source_tokens, maps.target_tokens)
    np.testing.assert_allclose(scores[0, 0], maps.scores["cross"][0].mean(axis=0), atol=1e-4)
    assert titles == ["mean of the heads of one layer"]


@pytest.mark.parametrize("option", ["--layer 0", "--head 0", "--kind encoder", "--target A"])
def test_what_an_export_does_not_answer(option, toy_version, tmp_path):
    result = run("attention", toy_version, "a", "--output", tmp_path / "x.png", *option.split())
    error = result.stderr.decode()
    assert result.returncode == 2 and "leave out --target, --kind, --layer and --head" in error
    assert error.count("\n") == 1 and not list(tmp_path.iterdir())
