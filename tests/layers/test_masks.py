"""Masks: by hand; they arrive whether passed or carried by Keras from PositionalEmbedding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support import layer_harness
from tests.support.layer_harness import SOURCE, TARGET, assert_close, build, to_numpy


def assert_mask(mask, expected):
    mask = keras.ops.convert_to_numpy(mask)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, np.array(expected, bool))


def test_padding_and_causal_mask():
    ids = np.array([[2, 7, 3], [1, 0, 0], [0, 0, 0]], "uint8")
    assert_mask(kt.padding_mask(ids), [[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    for number in (int, tf.constant):
        assert_mask(kt.causal_mask(number(3)), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
        assert_mask(kt.causal_mask(number(2), number(4)), [[1, 0, 0, 0], [1, 1, 0, 0]])


def test_combine():
    rows = np.array([[2, -1, 0], [1, 0, 0]])  # integers count as True where they are not 0
    columns = np.array([[1.0], [0.0]])  # floats must be 0 or 1
    assert_mask(kt.combine(rows, None, columns), [[1, 1, 0], [0, 0, 0]])
    assert_mask(kt.combine(rows), rows != 0)
    assert_mask(kt.key_mask(rows != 0), (rows != 0)[:, None, None, :])
    assert kt.combine(None, None) is kt.key_mask(None) is None


INPUTS = {
    "MultiHeadAttention": {"query": TARGET, "value": SOURCE},
    "Encoder": {"x": SOURCE},
    "Decoder": {"x": TARGET, "memory": SOURCE},
}
MASKS = {
    name: {"mask" if name == "Encoder" else f"{key}_mask": ids != 0 for key, ids in inputs.items()}
    for name, inputs in INPUTS.items()
}


@pytest.fixture(scope="module")
def embedding():
    layer = kt.PositionalEmbedding(layer_harness.SOURCE_VOCABULARY, layer_harness.D)
    layer.build()
    return layer_harness.randomize(layer)


def test_keras_passes_on_the_mask_of_padding_not_that_of_pairs(embedding):
    x, padding = embedding(SOURCE), SOURCE != 0
    pairs = padding[:, None] & np.tri(SOURCE.shape[1], dtype=bool)
    for layer in (encoder := build("Encoder"), encoder.layers[0]):
        assert_mask(layer(x, mask=pairs)._keras_mask, padding)
        assert_mask(layer(np.array(x), mask=padding)._keras_mask, padding)
        assert getattr(layer(np.array(x), mask=pairs), "_keras_mask", None) is None


@pytest.mark.parametrize("name", INPUTS)
def test_carried_equals_passed(name, embedding):
    layer = build(name)
    carried = {key: embedding(ids) for key, ids in INPUTS[name].items()}
    bare = to_numpy(carried)  # NumPy arrays carry nothing
    passed = to_numpy(layer(**bare, **MASKS[name], return_attention_scores=True))
    assert_close(layer(**carried, return_attention_scores=True), passed, 1e-6)
    assert_close(layer(*carried.values()), passed[0], 1e-6)
    half = build(name, policy="mixed_float16")  # the cast of what comes in float32 loses no mask
    assert_close(half(*carried.values()), passed[0], layer_harness.TOLERANCES["mixed_float16"])
    for mask in MASKS[name]:  # each of them matters
        others = {key: value for key, value in MASKS[name].items() if key != mask}
        scores = layer(**bare, **others, return_attention_scores=True)[1:]
        pairs = zip(*map(keras.tree.flatten, (to_numpy(scores), passed[1:])), strict=True)
        assert max(np.abs(one - other).max() for one, other in pairs) > 1e-2
    everything = {key: np.ones_like(mask) for key, mask in MASKS[name].items()}
    # A mask that is passed comes first.
    assert_close(layer(**carried, **everything), to_numpy(layer(**bare)))


@pytest.mark.parametrize("name", [*INPUTS, "FeedForward"])
def test_mask_is_carried_on(name, embedding):
    inputs = INPUTS.get(name, {"x": SOURCE})
    outputs = build(name)(**{key: embedding(ids) for key, ids in inputs.items()})
    average = keras.layers.GlobalAveragePooling1D()(outputs)
    mask = next(iter(inputs.values())) != 0
    expected = [row[own].mean(axis=0) for row, own in zip(to_numpy(outputs), mask, strict=True)]
    assert_close(average, np.array(expected))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_padding_anywhere_changes_nothing(count):
    """Right padding would show nothing: what looks back never sees it. Of so many inputs."""
    embed, layer = kt.PositionalEmbedding(9, 8, positions="none"), kt.MultiHeadAttention(2, 4)
    if count < 3:
        layer = kt.Decoder(2, 8, 2, 16, norm="pre", cross_attention=count == 2)
    plain, padded = np.array([[5, 6, 7, 8]] * 2), np.array([[0, 0, 5, 6, 7, 8], [5, 0, 6, 7, 0, 8]])
    layer(*[embed(plain)] * count)
    layer_harness.randomize(embed)
    layer_harness.randomize(layer)
    expected = np.array(layer(*[embed(plain)] * count)).reshape(-1, 8)
    inputs = [keras.Input((None,), dtype="int32") for _ in range(count)]
    model = keras.Model(inputs, layer(*map(embed, inputs)))
    first, *others = [padded] * count
    for ids in ([first, *others], [plain, *others]):
        assert_close(np.array(layer(*map(embed, ids)))[ids[0] != 0], expected)
        assert_close(np.array(model(ids))[ids[0] != 0], expected)
