"""What must hold for every layer: invariants, and what Keras expects."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import layer_harness
from tests.support.layer_harness import CASES, TOLERANCES, X, assert_close, build, to_numpy

# Each of the attentions; a decoder with a memory is tested in the whole model.
ATTENDING = [("MultiHeadAttention", "post"), ("Encoder", "pre"), ("Decoder alone", "post")]


@functools.cache  # nothing in here changes a layer's weights
def shared(name, norm="post", policy="float32"):
    return build(name, norm, policy)


def call(layer, arrays, **kwargs):
    return to_numpy(layer(**arrays, **kwargs))


def scores_of(outputs):
    return [x for x in keras.tree.flatten(outputs) if x.ndim == 4]


@pytest.mark.parametrize(("training", "policy"), [(False, "mixed_bfloat16"), (True, "float32")])
@pytest.mark.parametrize(("name", "norm"), ATTENDING)
def test_no_position_sees_the_future(name, norm, training, policy):
    """To the last bit: what is masked has weight 0, not a small one."""
    layer = build(name, norm, policy, dropout=0.3)
    seeds = [(variable, variable.numpy()) for variable in layer_harness.seed_states(layer)]

    def run(x):
        for variable, seed in seeds:
            variable.assign(seed)
        arrays = CASES[name].arrays | {"x": x} if "Decoder" in name else {"x": x}
        if name == "MultiHeadAttention":
            arrays = {"query": x, "value": x}
        how = {} if "Decoder" in name else {"use_causal_mask": True}
        outputs = call(layer, arrays, training=training, return_attention_scores=True, **how)
        return outputs[0], scores_of(outputs)

    expected, expected_scores = run(X)
    for first in range(1, X.shape[1]):
        changed = X.copy()
        changed[:, first:] = layer_harness.normal(*changed[:, first:].shape, seed=first + 10)
        actual, scores = run(changed)
        np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
        assert np.abs(actual[:, first:] - expected[:, first:]).max() > 0.05
        for one, other in zip(scores, expected_scores, strict=True):
            np.testing.assert_array_equal(one[:, :, :first], other[:, :, :first])


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize(("name", "norm"), ATTENDING)
def test_row_of_padding_only(name, norm, policy):
    """Finite results and gradients, no weight on any key, and no trace in the other row."""
    layer = shared(name, norm, policy)
    arrays = {key: array[:2].copy() for key, array in CASES[name].arrays.items()}
    for key in arrays:
        if "mask" in key:
            arrays[key][1] = False
    with tf.GradientTape() as tape:
        outputs = layer(**arrays, return_attention_scores=True)
        loss = tf.reduce_sum(tf.cast(outputs[0], "float32") ** 2)
    gradients = tape.gradient(loss, layer.trainable_variables)
    outputs = to_numpy(outputs)
    assert all(np.isfinite(x).all() for x in keras.tree.flatten(outputs))
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in gradients)
    assert scores_of(outputs)
    for scores in scores_of(outputs):
        assert scores[0].any() and not scores[1].any()
    alone = {key: array[:1] for key, array in arrays.items()}
    assert_close(outputs[0][:1], call(layer, alone), TOLERANCES[policy])


@pytest.mark.parametrize("policy", layer_harness.POLICIES[1:])
@pytest.mark.parametrize(
    ("name", "norm"), [("MultiHeadAttention", "post"), ("Decoder", "pre"), ("Transformer", "post")]
)
def test_half_precision(name, norm, policy):
    """Near single precision; weights and logits stay float32; it reaches every sublayer."""
    layer, compute = shared(name, norm, policy), policy.removeprefix("mixed_")
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
    assert_close(call(layer, arrays), call(shared(name, norm), arrays), tolerance)


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
        {"dropout": 0.1, "seed": 3, "use_bias": False, "name": "own_name"},
        {"kernel_initializer": "he_normal", "bias_initializer": "ones", "value_dim": None},
        {"output_initializer": "zeros", "positions": "relative"},
    ],
    "FeedForward": [
        {"dropout": 0.2, "activation": keras.ops.tanh},
        {"kernel_initializer": "he_normal", "output_initializer": "zeros"},
    ],
    "EncoderLayer": [{"depth": 3, "epsilon": 0.1, "positions": "rotary"}],
    "Transformer": [
        {"share_embeddings": "all", "positions": "learned", "dropout": 0.1, "activation": "silu"}
    ],
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
        expected = to_numpy(layer(**CASES[name].arrays))
        assert_close(twin(**CASES[name].arrays), expected, 1e-6)
