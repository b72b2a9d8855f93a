"""Our dropout: how much it drops, that nothing else follows a pattern, and what it leaves alone."""

import keras
import numpy as np
import pytest

from keras_transformer.kernels.layers import Dropout

LARGE = np.ones((64, 50, 300), "float32")


def dropped(x):
    return keras.ops.convert_to_numpy(x) == 0


@pytest.mark.parametrize(
    "rate, expected", [(0.3, 77), (0.1, 26), (0.5, 128), (0.01, 2.56), (0.999999, 255.999744)]
)
def test_share_and_scale(rate, expected):
    share = expected / 256  # in whole bytes, but where these would be too coarse
    output = keras.ops.convert_to_numpy(Dropout(rate, seed=1)(LARGE, training=True))
    deviation = np.sqrt(share * (1 - share) / LARGE.size)
    assert abs(np.mean(output == 0) - share) < 5 * deviation
    np.testing.assert_allclose(output[output != 0], 1 / (1 - share), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8])
def test_entries_are_independent(axis, distance):
    # Four neighbours come from one integer.
    mask = dropped(Dropout(0.3, seed=2)(LARGE, training=True)) - 77 / 256
    one = np.take(mask, range(distance, mask.shape[axis]), axis)
    other = np.take(mask, range(mask.shape[axis] - distance), axis)
    correlation = np.mean(one * other) / np.var(mask)
    assert abs(correlation) < 5 / np.sqrt(one.size)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_any_width(width):
    output = Dropout(0.5, seed=3)(np.ones((1000, width), "float32"), training=True)
    assert output.shape == (1000, width)
    # Every column by itself, the last ones of an integer that is cut off too.
    assert np.all(abs(dropped(output).mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(1000))


def test_every_call_draws_anew_and_a_seed_repeats_it():
    first, again = Dropout(0.5, seed=4), Dropout(0.5, seed=4)
    one, two = (dropped(first(LARGE, training=True)) for _ in range(2))
    assert (one != two).any()
    assert (one == dropped(again(LARGE, training=True))).all()
    assert (one != dropped(Dropout(0.5, seed=5)(LARGE, training=True))).any()


def test_nothing_is_dropped_outside_of_training():
    for layer, training in ((Dropout(0.5), False), (Dropout(0.5), None), (Dropout(0.0), True)):
        np.testing.assert_array_equal(layer(LARGE, training=training), LARGE)


def test_everything_is_dropped():
    assert dropped(Dropout(1.0)(LARGE, training=True)).all()


def test_gradients_are_dropped_alike():
    tensorflow = pytest.importorskip("tensorflow")
    x = tensorflow.constant(LARGE[0])
    with tensorflow.GradientTape() as tape:
        tape.watch(x)
        output = Dropout(0.3, seed=6)(x, training=True)
    np.testing.assert_array_equal(tape.gradient(output, x), output)  # of ones


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(policy):
    layer = Dropout(0.3, seed=7, dtype=policy)
    output = layer(LARGE, training=True)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    assert abs(dropped(keras.ops.cast(output, "float32")).mean() - 77 / 256) < 0.01


def test_masks_pass_and_a_copy_is_equal():
    layer = Dropout(0.25, seed=8, name="own")
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(copy) is Dropout and (copy.rate, copy.seed, copy.name) == (0.25, 8, "own")
    mask = np.array([[True, False]])
    np.testing.assert_array_equal(layer.compute_mask(LARGE, mask), mask)


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_rates_that_cannot_be(rate):
    with pytest.raises(ValueError, match="rate"):
        Dropout(rate)
