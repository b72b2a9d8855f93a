"""What must hold for every layer: invariants, and what Keras expects."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import layer_harness
from tests.support.layer_harness import CASES, TOLERANCES, X, assert_close, build, to_numpy


@functools.cache  # nothing in here changes a layer's weights
def shared(name, norm="post", policy="float32"):
    return build(name, norm, policy)


@pytest.mark.parametrize("training, policy", [(False, "mixed_bfloat16"), (True, "float32")])
@pytest.mark.parametrize("name", ["MultiHeadAttention", "Encoder", "Decoder alone"])
def test_no_position_sees_the_future(name, training, policy):
    """A decoder with a memory is tested in the whole model."""
    layer = build(name, "pre", policy, dropout=0.3)
    reseed = layer_harness.reseeding(layer)

    def run(x):
        reseed()
        arrays = {"query": x, "value": x} if name == "MultiHeadAttention" else {"x": x}
        how = {} if "Decoder" in name else {"use_causal_mask": True}
        return to_numpy(layer(**arrays, training=training, **how))

    expected = run(X)
    for first in range(1, X.shape[1]):
        changed = X.copy()
        changed[:, first:] = layer_harness.normal(*changed[:, first:].shape, seed=first + 10)
        actual = run(changed)
        np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
        assert np.abs(actual[:, first:] - expected[:, first:]).max() > 0.05


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("name", ["MultiHeadAttention", "Encoder", "Decoder alone"])
def test_row_of_padding_only(name, policy):
    """Finite results and gradients, no weight on any key, and no trace in the other row."""
    layer, arrays = shared(name, "pre", policy), CASES[name].arrays
    arrays = {key: array[:2].copy() for key, array in arrays.items()}
    for key in filter(lambda key: "mask" in key, arrays):
        arrays[key][1] = False
    with tf.GradientTape() as tape:
        outputs = layer(**arrays, return_attention_scores=True)
        loss = tf.reduce_sum(tf.cast(outputs[0], "float32") ** 2)
    gradients = to_numpy(
        [*map(tf.convert_to_tensor, tape.gradient(loss, layer.trainable_variables))]
    )
    outputs = keras.tree.flatten(to_numpy(outputs))
    assert all(np.isfinite(x).all() for x in [*outputs, *gradients])
    scores = [x for x in outputs if x.ndim == 4]
    assert scores and all(x[0].any() and not x[1].any() for x in scores)
    alone = to_numpy(layer(**{key: array[:1] for key, array in arrays.items()}))
    assert_close(outputs[0][:1], alone, TOLERANCES[policy])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", ["MultiHeadAttention", "Decoder", "Transformer"])
def test_half_precision(name, policy):
    layer, compute = shared(name, "pre", policy), policy.removeprefix("mixed_")
    arrays = CASES[name].arrays
    assert {w.dtype for w in layer.weights} == {"float32"}
    assert {part.dtype_policy.name for part in layer._flatten_layers()} == {policy}
    outputs = keras.tree.flatten(layer(**arrays, return_attention_scores=True))
    first = "float32" if name == "Transformer" else compute
    assert [x.dtype for x in outputs] == [first] + [compute] * (len(outputs) - 1)
    tolerance = TOLERANCES[policy] * getattr(layer, "num_layers", 1)  # each layer rounds anew
    if policy == "mixed_bfloat16" and layer_harness.truncates():
        tolerance *= 3  # up to twice the error, and always towards zero: they add up
    if name == "Transformer":
        tolerance *= 2
    assert_close(layer(**arrays), to_numpy(shared(name, "pre")(**arrays)), tolerance)


@pytest.mark.parametrize("name", CASES)
def test_compute_output_shape(name):
    layer, arrays = shared(name), CASES[name].arrays
    shapes = [x.shape for key, x in arrays.items() if "mask" not in key and key != "inputs"]
    if name == "Transformer":
        shapes = [tuple(x.shape for x in arrays["inputs"])]
    expected = tuple(layer(**arrays).shape)
    assert layer.compute_output_shape(*shapes) == expected
    free = keras.tree.map_shape_structure(lambda shape: (None, None, *shape[2:]), shapes)
    assert layer.compute_output_shape(*free) == (None, None, expected[-1])


ARGUMENTS = {
    "PositionalEmbedding": [{"dropout": 0.2, "output_bias": True, "first_position": 1}],
    "MultiHeadAttention": [
        {"dropout": 0.1, "seed": 3, "use_bias": False, "positions": "relative", "name": "own"},
        {"kernel_initializer": "he_normal", "bias_initializer": "ones", "value_dim": None},
    ],
    "FeedForward": [{"activation": keras.ops.tanh, "output_initializer": "zeros"}],
    "EncoderLayer": [{"depth": 3, "epsilon": 0.1, "positions": "rotary"}],
    "Transformer": [{"share_embeddings": "all", "positions": "learned", "activation": "silu"}],
}


@pytest.mark.parametrize("name", CASES)
def test_configuration_round_trip(name):
    by_default = [{"dropout": 0.1, "activation": "gelu", "dtype": "mixed_bfloat16"}]
    for arguments in ARGUMENTS.get(name, by_default):
        layer = CASES[name].make("pre", **arguments)
        layer(**CASES[name].arrays)
        twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        assert twin.get_config() == layer.get_config()
        numbers = {k: v for k, v in arguments.items() if isinstance(v, int | float)}
        assert twin.get_config().items() >= numbers.items()
        twin(**CASES[name].arrays)
        twin.set_weights(layer.get_weights())
        assert_close(twin(**CASES[name].arrays), to_numpy(layer(**CASES[name].arrays)), 1e-6)
