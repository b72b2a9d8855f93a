"""Weights in fewer bits: rounded as said, lent to the model, and small on disk."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.presets import ExportConfig
from keras_transformer.serving.saved_model import export
from keras_transformer.serving.served_translator import StoredWeights
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.versions import read_card
from tests.support.toy_translator import SOURCES, random_translator, toy_pairs, trained_translator


@pytest.fixture(scope="module")
def model():
    return random_translator(seed=5, share_embeddings="target", positions="learned").model


def lent(model, precision):
    """What the model reads while it uses stored weights: {path: array}."""
    with StoredWeights(model, precision).in_use():
        return {weight.path: np.array(weight.value) for weight in model.weights}


def is_matrix(weight):
    return weight.name.endswith(("kernel", "embeddings"))


def test_bfloat16_rounds_matrices_and_nothing_else(model):
    whole, found = lent(model, "float32"), lent(model, "bfloat16")
    for weight in model.weights:
        np.testing.assert_array_equal(whole[weight.path], weight.value)
        value = tf.convert_to_tensor(weight.value)
        expected = tf.cast(tf.cast(value, tf.bfloat16), tf.float32) if is_matrix(weight) else value
        np.testing.assert_array_equal(found[weight.path], expected)


def channels_last(weight):
    """The matrix (inputs, outputs) that a weight is."""
    value = np.array(weight)
    if weight.name.endswith("embeddings"):
        return value.T
    if weight.path.endswith("attention_output/kernel"):
        return value.reshape(-1, value.shape[-1])
    return value.reshape(value.shape[0], -1)


def test_int8_has_a_scale_for_every_output_channel(model):
    found = lent(model, "int8")
    matrices = 0
    for weight in model.weights:
        value = np.array(weight.value)
        if not is_matrix(weight):
            np.testing.assert_array_equal(found[weight.path], value)
            continue
        matrices += 1
        matrix = channels_last(weight)
        scale = np.abs(matrix).max(axis=0) / 127
        expected = np.round(matrix / scale) * scale
        stored = found[weight.path]
        stored = stored.T if weight.name.endswith("embeddings") else stored.reshape(matrix.shape)
        np.testing.assert_allclose(stored, expected, rtol=1e-5, atol=1e-6)
        assert (np.abs(stored - matrix) <= scale / 2 * 1.001).all()
    # Two token and two position embeddings; 4 + 2 and 8 + 2 kernels of one layer each.
    assert matrices == 2 + 2 + 6 + 10


def test_channel_of_zeros_stays_zero(model):
    weight = next(weight for weight in model.weights if weight.name == "embeddings")
    before = weight.numpy()
    try:
        weight.assign(np.concatenate([np.zeros_like(before[:1]), before[1:]]))
        stored = lent(model, "int8")[weight.path]
        assert not stored[0].any() and np.isfinite(stored).all()
    finally:
        weight.assign(before)


@pytest.mark.parametrize("precision, share", [("bfloat16", 0.6), ("int8", 0.4)])
def test_export_is_smaller(tmp_path, precision, share, toy_version):
    translator, pairs = trained_translator(), toy_pairs(100, seed=9)
    config = ExportConfig(signatures=(), precision=precision)
    path = export(translator, tmp_path, config=config, pairs=pairs)
    assert read_card(path)["precision"] == {"computation": "float32", "weights": precision}
    folders = [pathlib.Path(version, "variables") for version in (path, toy_version)]
    sizes = [sum(file.stat().st_size for file in folder.iterdir()) for folder in folders]
    assert sizes[0] < share * sizes[1]
    sources, _ = zip(*pairs, strict=True)
    outputs = translator.translate(sources)
    with ServerProcess(path) as server:
        texts = server.predict(list(sources))["text"]
        # Where rounding changed an answer it was a close call: most stay.
        same = np.mean([a == b for a, b in zip(texts, outputs, strict=True)])
        assert same > 0.8
        assert server.predict(SOURCES)["text"] != SOURCES


def test_positions_in_int8(tmp_path):
    """Kernels are rounded, tables of distances are not; texts longer than the distances."""
    translator = random_translator(seed=5, positions="relative", max_distance=2)
    config = ExportConfig(signatures=(), precision="int8")
    path = export(translator, tmp_path, config=config)
    rounded = lent(translator.model, "int8")
    for weight in translator.model.weights:
        value = rounded[weight.path]
        assert weight.name.startswith("relative_") <= np.array_equal(weight, value)
        weight.assign(value)
    best = [found for (found,) in translator.translate_n_best(SOURCES, n_best=1)]
    with ServerProcess(path) as server:
        found = server.predict(SOURCES)
    assert found["text"] == [one.text for one in best] and len(set(found["text"])) > 3
    np.testing.assert_allclose(found["log_prob"], [one.log_prob for one in best], atol=1e-3)
