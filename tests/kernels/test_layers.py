"""Keras' layers with faster computations: what they compute, against the formulas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.kernels.layers import Dropout, LayerNormalization

LARGE = np.ones((64, 50, 300), "float32")


def dropped(x):
    return keras.ops.convert_to_numpy(x) == 0


@pytest.mark.parametrize("rate, expected", [(0.3, 77), (0.01, 2.56), (0.9999, 255.9744)])
def test_share_and_scale(rate, expected):
    share = expected / 256  # in whole bytes, but where these would be too coarse
    output = keras.ops.convert_to_numpy(Dropout(rate, seed=1)(LARGE, training=True))
    assert abs(np.mean(output == 0) - share) < 5 * np.sqrt(share * (1 - share) / LARGE.size)
    np.testing.assert_allclose(output[output != 0], 1 / (1 - share), rtol=1e-6)


def test_entries_are_independent():
    mask = dropped(Dropout(0.3, seed=2)(LARGE, training=True)) - 77 / 256
    # Four neighbours come from one integer.
    for axis, distance in [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4)]:
        one = np.take(mask, range(distance, mask.shape[axis]), axis)
        other = np.take(mask, range(mask.shape[axis] - distance), axis)
        assert abs(np.mean(one * other) / np.var(mask)) < 5 / np.sqrt(one.size)


def test_any_width():
    """Every column by itself, the last ones of an integer that is cut off too."""
    for width in (1, 7):
        output = Dropout(0.5, seed=3)(np.ones((1000, width), "float32"), training=True)
        assert output.shape == (1000, width)
        assert np.all(abs(dropped(output).mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(1000))


def test_every_call_draws_anew_and_a_seed_repeats_it():
    first, again = Dropout(0.5, seed=4), Dropout(0.5, seed=4)
    one, two = (dropped(first(LARGE, training=True)) for _ in range(2))
    assert (one != two).any()
    assert (one == dropped(again(LARGE, training=True))).all()
    assert (one != dropped(Dropout(0.5, seed=5)(LARGE, training=True))).any()


def test_nothing_or_everything_is_dropped():
    for layer, training in ((Dropout(0.5), False), (Dropout(0.5), None), (Dropout(0.0), True)):
        np.testing.assert_array_equal(layer(LARGE, training=training), LARGE)
    assert dropped(Dropout(1.0)(LARGE, training=True)).all()


X = np.random.default_rng(3).normal(2, 3, (4, 5, 16)).astype("float32")


def by_hand(x, gamma, beta):
    """Ba et al. (2016), equation 4, in float64."""
    x = x.astype("float64")
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * gamma + beta


@pytest.mark.parametrize(
    "policy, scale, tolerance",
    # The mean of squares of such numbers is beyond float16.
    [("float32", 1, 1e-5), ("mixed_bfloat16", 100, 6e-2), ("mixed_float16", 100, 1.5e-2)],
)
def test_statistics_are_float32(policy, scale, tolerance):
    layer = LayerNormalization(epsilon=1e-6, dtype=policy)
    layer.build(X.shape)
    layer.set_weights([np.linspace(0.5, 2, 16), np.linspace(-1, 1, 16)])
    # The input itself is rounded before it is normalised.
    rounded = keras.ops.cast(scale * X, layer.compute_dtype)
    found = layer(rounded)
    assert found.dtype == layer.compute_dtype
    rounded, found = (keras.ops.convert_to_numpy(tf.cast(x, "float32")) for x in (rounded, found))
    np.testing.assert_allclose(found, by_hand(rounded, *layer.get_weights()), atol=tolerance)
