"""Attention: the literature's worked examples, and the formula in float64."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import layer_harness, oracle
from tests.support.layer_harness import assert_close, normal


def attend(query, key, value, **kwargs):
    """Attention of one sentence and one head: (T, K), (S, K), (S, K') -> (T, K'), (T, S)."""
    one_head = [np.asarray(x, "float32")[None, :, None] for x in (query, key, value)]
    output, weights = kt.dot_product_attention(*one_head, **kwargs)
    return np.array(output)[0, :, 0], np.array(weights)[0, 0]


# Worked examples.


def test_scores_6_4_and_3_8_over_root_16():
    query = np.zeros((2, 16))
    query[0, :2], query[1, :2] = (6, 4), (3, 8)
    value = np.eye(2)  # the output shows the weights
    output, weights = attend(query, np.eye(2, 16), value)
    np.testing.assert_allclose(weights, [[0.62, 0.38], [0.22, 0.78]], atol=5e-3)
    np.testing.assert_allclose(output, weights, atol=1e-6)
    by_hand = 1 / (1 + np.exp([-0.5, 1.25]))  # of the first key: logistic of (6-4)/4, (3-8)/4
    np.testing.assert_allclose(weights[:, 0], by_hand, atol=1e-4)


def test_products_of_one_query_with_five_keys():
    # K = 1, so that the root changes nothing.
    _, weights = attend([[1.0]], np.array([[2.0, 2.4, -10, 1.8, -12.5]]).T, np.eye(5))
    np.testing.assert_allclose(weights, [[0.30, 0.45, 0, 0.25, 0]], atol=5e-3)
    powers = np.exp([2.0, 2.4, -10, 1.8, -12.5])
    np.testing.assert_allclose(weights[0], powers / powers.sum(), atol=1e-4)


# The formula.


@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_formula(masked):
    query, key, value = normal(2, 5, 3, 4), normal(2, 7, 3, 4, seed=1), normal(2, 7, 3, 6, seed=2)
    mask = np.random.default_rng(3).random((2, 3, 5, 7)) < 0.5
    mask[0, 1, 2] = False  # a query without keys
    output, weights = kt.dot_product_attention(query, key, value, mask=mask if masked else None)
    assert output.shape == (2, 5, 3, 6)  # N×T×d_v for every head
    assert weights.shape == (2, 3, 5, 7)
    for row, head in np.ndindex(2, 3):
        own = (query[row, :, head], key[row, :, head], value[row, :, head])
        expected = oracle.attention(*own, mask[row, head] if masked else None)
        assert_close((output[row, :, head], weights[row, head]), expected)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (1, 1, 1, 7), (2, 1, 1, 7), (1, 3, 5, 1)])
def test_mask_broadcasts(shape):
    mask = np.random.default_rng(4).random(shape) < 0.6
    query, key, value = normal(2, 5, 3, 4), normal(2, 7, 3, 4, seed=1), normal(2, 7, 3, 6, seed=2)
    full = np.broadcast_to(mask, (2, 3, 5, 7))
    assert_close(
        kt.dot_product_attention(query, key, value, mask=mask),
        layer_harness.to_numpy(kt.dot_product_attention(query, key, value, mask=full)),
    )
    weights = kt.dot_product_attention(query, key, value, mask=mask)[1]
    assert not np.array(weights)[~full].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_large_scores_and_empty_rows_stay_finite(dtype):
    x = keras.ops.cast(200 * normal(1, 4, 1, 8), dtype)  # scores beyond float16's 65504
    mask = np.ones((4, 4), bool)
    mask[2] = False
    output, weights = kt.dot_product_attention(x / 4, x, x, mask=mask)
    output, weights = layer_harness.to_numpy((output, weights))
    assert np.isfinite(output).all() and np.isfinite(weights).all()
    assert not output[0, 2].any() and not weights[0, 0, 2].any()
    np.testing.assert_allclose(weights[0, 0, [0, 1, 3]].sum(axis=-1), 1, atol=1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_softmax_runs_in_float32(dtype):
    """Rounded once, at the end: half a unit in the last place from the exact weights."""
    query, key = np.ones((1, 1, 1, 1)), 2 * normal(1, 300, 1, 1)
    query, key = (keras.ops.cast(x, dtype) for x in (query, key))
    weights = layer_harness.to_numpy(kt.dot_product_attention(query, key, key)[1])
    expected = oracle.softmax(layer_harness.to_numpy(key)[0, :, 0, 0].astype("float64"))
    half_a_unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    np.testing.assert_allclose(weights[0, 0, 0], expected, rtol=1.01 * half_a_unit, atol=1e-7)


def test_dropout_drops_weights_and_returns_them_whole():
    query, key = normal(1, 40, 1, 4), normal(1, 50, 1, 4, seed=1)
    output, weights = kt.dot_product_attention(
        query, key, np.eye(50, dtype="float32")[None, :, None], dropout=0.25, seed=7
    )
    kept, weights = np.array(output)[0, :, 0], np.array(weights)[0, 0]  # (40, 50) each
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    dropped = kept == 0
    assert 0.2 < dropped.mean() < 0.3
    np.testing.assert_allclose(kept[~dropped], weights[~dropped] / 0.75, rtol=1e-5)


# Several heads.

MULTI_HEAD = [{}, {"use_bias": False}, {"value_dim": None, "output_shape": None}]


@pytest.mark.parametrize("arguments", MULTI_HEAD, ids=str)
def test_multi_head_equals_the_formula(arguments):
    layer = layer_harness.build("MultiHeadAttention", **arguments)
    query, value, key = layer_harness.X, layer_harness.MEMORY, normal(3, 6, 8, seed=9)
    mask = np.random.default_rng(5).random((3, 4, 6)) < 0.5
    mask[1, 2] = False  # a query without keys
    actual = layer(query, value, key, attention_mask=mask, return_attention_scores=True)
    assert_close(actual, oracle.multi_head(layer, query, value, key, mask))
    assert_close(layer(query, value, key, attention_mask=mask), actual[0])


def test_self_attention_projects_as_separate_inputs_do():
    layer = layer_harness.build("MultiHeadAttention")
    x = keras.ops.convert_to_tensor(layer_harness.X)
    copies = [keras.ops.copy(x) for _ in range(3)]
    expected = oracle.multi_head(layer, layer_harness.X, layer_harness.X)[0]
    assert_close(layer(x, x), expected)  # one product for all three
    assert_close(layer(x, x, x), expected)
    assert_close(layer(copies[0], x, x), expected)  # one for key and value
    assert_close(layer(*copies), expected)


def test_seed_fixes_the_dropout():
    layers = [layer_harness.build("MultiHeadAttention", dropout=0.5, seed=s) for s in (1, 1, 2)]
    first, same, other = (
        np.array(layer(layer_harness.X, layer_harness.MEMORY, training=True)) for layer in layers
    )
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-3
    assert_close(
        layers[0](layer_harness.X, layer_harness.MEMORY, training=False),
        oracle.multi_head(layers[0], layer_harness.X, layer_harness.MEMORY)[0],
    )


def test_kernels_start_at_the_scale_of_their_matrices():
    layer = kt.MultiHeadAttention(8, 64)
    layer.build((None, None, 512), (None, None, 512))
    query, key, value, output = layer.get_weights()[::2]
    for kernel in (query, key, value, output):
        expected = np.sqrt(2 / (512 + 512))  # Glorot: 2 / (inputs + outputs)
        assert kernel.std() == pytest.approx(expected, rel=0.02)
    assert np.abs(query - key).max() > 1e-3  # each drawn anew
    assert not any(bias.any() for bias in layer.get_weights()[1::2])
