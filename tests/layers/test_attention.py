"""Attention: worked examples, the formula in float64, and Keras' own layer."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from tests.support import oracle
from tests.support.layer_harness import MEMORY, SOURCE, X, assert_close, build, normal, to_numpy


def attend(query, key, value, **kwargs):
    """Attention of one sentence and one head: (T, K), (S, K), (S, K') -> (T, K'), (T, S)."""
    one_head = [np.asarray(x, "float32")[None, :, None] for x in (query, key, value)]
    output, weights = kt.dot_product_attention(*one_head, **kwargs)
    return np.array(output)[0, :, 0], np.array(weights)[0, 0]


def test_scores_6_4_and_3_8_over_root_16():
    query = np.pad([[6.0, 4], [3, 8]], [(0, 0), (0, 14)])
    output, weights = attend(query, np.eye(2, 16), np.eye(2))  # the output shows the weights
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


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_scores_and_empty_rows_stay_finite(dtype):
    x = keras.ops.cast(200 * normal(1, 4, 1, 8), dtype)  # scores beyond float16's 65504
    mask = np.ones((4, 4), bool)
    mask[2] = False
    with tf.GradientTape() as tape:
        tape.watch(x)
        output, weights = kt.dot_product_attention(x / 4, x, x, mask=mask)
    output, weights, gradient = to_numpy((output, weights, tape.gradient(output, x)))
    assert all(np.isfinite(values).all() for values in (output, weights, gradient))
    assert not output[0, 2].any() and not weights[0, 0, 2].any()
    np.testing.assert_allclose(weights[0, 0, [0, 1, 3]].sum(axis=-1), 1, atol=1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_softmax_runs_in_float32(dtype):
    """Rounded once, at the end: half a unit in the last place from the exact weights."""
    query, key = np.ones((1, 1, 1, 1)), 2 * normal(1, 300, 1, 1)
    query, key = (keras.ops.cast(x, dtype) for x in (query, key))
    weights = to_numpy(kt.dot_product_attention(query, key, key)[1])
    expected = oracle.softmax(to_numpy(key)[0, :, 0, 0].astype("float64"))
    half_a_unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
    np.testing.assert_allclose(weights[0, 0, 0], expected, rtol=1.01 * half_a_unit, atol=1e-7)


def test_dropout_drops_weights_and_returns_them_whole():
    query, key = normal(1, 40, 1, 4), normal(1, 50, 1, 4, seed=1)
    value = np.eye(50, dtype="float32")[None, :, None]
    output, weights = kt.dot_product_attention(query, key, value, dropout=0.25, seed=7)
    kept, weights = np.array(output)[0, :, 0], np.array(weights)[0, 0]  # (40, 50) each
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    dropped = kept == 0
    assert 0.2 < dropped.mean() < 0.3
    np.testing.assert_allclose(kept[~dropped], weights[~dropped] / 0.75, rtol=1e-5)


def test_seed_fixes_the_dropout():
    layers = [build("MultiHeadAttention", dropout=0.5, seed=seed) for seed in (1, 1, 2)]
    first, same, other = (np.array(layer(X, MEMORY, training=True)) for layer in layers)
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-3


B, T, S = 3, 4, 6
QUERY, VALUE, KEY = normal(B, T, 8, seed=1), normal(B, S, 10, seed=2), normal(B, S, 12, seed=3)


def pair(arguments, query=QUERY, value=VALUE, key=None):
    arguments = {"num_heads": 2, "key_dim": 3} | arguments
    theirs, ours = keras.layers.MultiHeadAttention(**arguments), kt.MultiHeadAttention(**arguments)
    for layer in (theirs, ours):
        layer.build(query.shape, value.shape, None if key is None else key.shape)
    theirs.set_weights([normal(*w.shape, seed=i) / 2 for i, w in enumerate(theirs.get_weights())])
    ours.set_weights(theirs.get_weights())
    return theirs, ours


def some(*shape):
    """A random mask that leaves every query its first key."""
    mask = np.random.default_rng(5).random(shape) < 0.5
    mask[..., 0] = True
    return mask


ARGUMENTS = {
    "num_heads": st.sampled_from([1, 2]),
    "value_dim": st.sampled_from([None, 7]),
    "output_shape": st.sampled_from([None, 5, (5,)]),
    "use_bias": st.booleans(),
    "dropout": st.sampled_from([0.0, 0.5]),  # at rest
}
MASKS = {
    "value_mask": st.sampled_from([None, some(B, S)]),
    "key_mask": st.sampled_from([None, SOURCE != 0]),
    "attention_mask": st.sampled_from([None, some(T, S).astype("int32"), some(B, T, S)]),
    "use_causal_mask": st.booleans(),
}
# Which Keras does not combine with others.
ALONE = {"attention_mask": st.sampled_from([some(B, 1, T, S), some(B, 1, 1, S), some(1, 1, S)])}
any_masks = st.fixed_dictionaries(MASKS) | st.fixed_dictionaries(ALONE)


@settings(max_examples=settings().max_examples // 2)
@example({"dropout": 0.5}, {"value_mask": some(B, S), "key_mask": SOURCE != 0}, KEY)
@given(st.fixed_dictionaries(ARGUMENTS), any_masks, st.sampled_from([None, KEY]))
def test_equals_keras(arguments, masks, key):
    theirs, ours = pair(arguments, key=key)
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    call = {"query": QUERY, "value": VALUE, "key": key, "return_attention_scores": True} | masks
    if key is None:  # or Keras would ignore it
        call["key_mask"] = None
    assert_close(ours(**call), theirs(**call))


def test_same_arguments_in_the_same_order():
    kinds = kt.MultiHeadAttention, keras.layers.MultiHeadAttention

    def defaults(function):
        return {p.name: p.default for p in inspect.signature(function).parameters.values()}

    ours, theirs = (defaults(kind.call) for kind in kinds)
    assert list(ours.items()) == list(theirs.items())
    ours, theirs = (defaults(kind.__init__) for kind in kinds)
    own = ["output_initializer", "positions", "max_distance"]  # those that Keras does not have
    assert list(ours)[-4:-1] == own  # before **kwargs
    assert [ours.pop(name) for name in own] == [None] * 3
    assert list(ours.items()) == [item for item in theirs.items() if item[0] in ours]


def test_penalties_are_those_of_keras():
    penalties = dict(kernel_regularizer=keras.regularizers.L2(0.1), bias_regularizer="l1")
    penalties |= dict(activity_regularizer=keras.regularizers.L2(0.01), bias_constraint="non_neg")
    theirs, ours = pair(penalties | dict(kernel_constraint=keras.constraints.MaxNorm(0.3)))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(ours))
    again(QUERY, VALUE)
    again.set_weights(ours.get_weights())
    theirs(QUERY, VALUE)
    for layer in (ours, again):
        layer(QUERY, VALUE)
        assert_close(np.array(layer.losses[-12:]), np.array(theirs.losses), 1e-6)
        assert {type(w.constraint).__name__ for w in layer.weights} == {"MaxNorm", "NonNeg"}


class TakesOthers(kt.MultiHeadAttention):
    def call(self, query, value, **kwargs):
        return super().call(query, value, **kwargs)


def test_a_subclass_passes_arguments_on():
    """Those that its `call` does not name arrive; Keras itself refuses masks beside flags there."""
    layer, plain = TakesOthers(2, 3), kt.MultiHeadAttention(2, 3)
    for one in (layer, plain):
        one.build(X.shape, MEMORY.shape)
    layer.set_weights(plain.get_weights())
    flags = {"use_causal_mask": True, "return_attention_scores": True}
    for how in (flags, {"value_mask": SOURCE != 0}):
        assert_close(layer(X, MEMORY, **how), plain(X, MEMORY, **how), 0)
