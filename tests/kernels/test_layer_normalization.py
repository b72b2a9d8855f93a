"""Our layer normalisation against Keras' own: the same values, and the same gradients."""

import keras
import numpy as np
import pytest

from keras_transformer.kernels.layers import LayerNormalization

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(2, 3, (4, 5, 16)).astype("float32")
UPSTREAM = GENERATOR.normal(size=X.shape).astype("float32")


def build(kind, **options):
    layer = kind(epsilon=1e-6, **options)
    layer.build((None, None, 16))
    layer.set_weights([np.linspace(0.5, 2, 16), np.linspace(-1, 1, 16)])
    return layer


def by_hand(x, gamma, beta):
    """Ba et al. (2016), equation 4, in float64."""
    x = x.astype("float64")
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * gamma + beta


def test_values():
    layer = build(LayerNormalization)
    np.testing.assert_allclose(layer(X), by_hand(X, *layer.get_weights()), atol=1e-5)


@pytest.mark.parametrize("policy, tolerance", [("mixed_bfloat16", 2e-2), ("mixed_float16", 5e-3)])
def test_statistics_are_float32(policy, tolerance):
    layer = build(LayerNormalization, dtype=policy)
    # The mean of squares of such numbers is beyond float16.
    found = keras.ops.convert_to_numpy(keras.ops.cast(layer(100 * X), "float32"))
    assert layer(X).dtype == layer.compute_dtype
    # The input itself is rounded before it is normalised.
    rounded = keras.ops.cast(keras.ops.cast(100 * X, layer.compute_dtype), "float32")
    expected = by_hand(keras.ops.convert_to_numpy(rounded), *layer.get_weights())
    np.testing.assert_allclose(found, expected, atol=3 * tolerance)


def test_gradients_are_those_of_automatic_differentiation():
    tensorflow = pytest.importorskip("tensorflow")

    def gradients(layer):
        x = tensorflow.constant(X)
        with tensorflow.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
        inputs = [x, *(weight.value for weight in layer.weights)]
        return tape.gradient(output, inputs, output_gradients=UPSTREAM)

    ours, theirs = (
        gradients(build(LayerNormalization)),
        gradients(build(keras.layers.LayerNormalization)),
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_weights_are_those_of_keras():
    ours, theirs = build(LayerNormalization), build(keras.layers.LayerNormalization)
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    assert LayerNormalization.from_config(ours.get_config()).epsilon == 1e-6
