"""What must hold for every layer: invariants, and what Keras expects."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import layer_harness
from tests.support.layer_harness import (
    CASES,
    POLICIES,
    TOLERANCES,
    X,
    assert_close,
    build,
    functional,
    normal,
    symbols,
    to_numpy,
)

# Layers in a stack are tested with it.
ATTENDING = [
    ("MultiHeadAttention", "post"),
    ("Encoder", "pre"),
    ("Decoder", "post"),
    ("Decoder alone", "pre"),
]
EVERY = [("FeedForward", "post"), ("PositionalEmbedding", "post"), *ATTENDING]
every_layer = pytest.mark.parametrize("name", CASES)
# With all outputs that they have.
SCORES = {
    name: {"return_attention_scores": True} if c.has_scores else {} for name, c in CASES.items()
}


@functools.cache  # nothing in here changes a layer's weights
def shared(name, norm="post", policy="float32"):
    return build(name, norm, policy)


def call(layer, arrays, **kwargs):
    return to_numpy(layer(**arrays, **kwargs))


def scores_of(outputs):
    """All attention weights that a layer has returned, (B, H, T, S) each."""
    return [x for x in keras.tree.flatten(outputs) if x.ndim == 4]


# The future.


def causal_call(name, layer, x, **kwargs):
    """Runs a layer that must not look ahead on a target (B, T, D) and the usual memory."""
    kwargs |= {"return_attention_scores": True}
    if name == "MultiHeadAttention":
        return call(layer, {"query": x, "value": x}, use_causal_mask=True, **kwargs)
    if "Encoder" in name:
        return call(layer, {"x": x}, use_causal_mask=True, **kwargs)
    return call(layer, CASES[name].arrays | {"x": x}, **kwargs)


@pytest.mark.parametrize(("training", "policy"), [(False, "mixed_bfloat16"), (True, "float32")])
@pytest.mark.parametrize(("name", "norm"), ATTENDING)
def test_no_position_sees_the_future(name, norm, training, policy):
    """To the last bit: what is masked has weight 0, not a small one."""
    layer = build(name, norm, policy, dropout=0.3)
    seeds = [(variable, variable.numpy()) for variable in layer_harness.seed_states(layer)]

    def run(x):
        for variable, seed in seeds:
            variable.assign(seed)
        outputs = causal_call(name, layer, x, training=training)
        return outputs[0], scores_of(outputs)

    expected, expected_scores = run(X)
    for first in range(1, X.shape[1]):
        changed = X.copy()
        changed[:, first:] = normal(*changed[:, first:].shape, seed=first + 10)
        actual, scores = run(changed)
        np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
        assert np.abs(actual[:, first:] - expected[:, first:]).max() > 0.05
        for one, other in zip(scores, expected_scores, strict=True):
            np.testing.assert_array_equal(one[:, :, :first], other[:, :, :first])


# Padding.


def empty_row(arrays):
    """The same batch with a second row of nothing but padding."""
    return {
        key: np.concatenate([array[:1], np.zeros_like(array[:1]) if "mask" in key else array[1:2]])
        for key, array in arrays.items()
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "norm"), ATTENDING)
def test_row_of_padding_only(name, norm, policy):
    """Finite results and gradients, no weight on any key, and no trace in the other row."""
    layer = shared(name, norm, policy)
    arrays = empty_row(CASES[name].arrays)
    with tf.GradientTape() as tape:
        outputs = layer(**arrays, return_attention_scores=True)
        loss = tf.reduce_sum(tf.cast(outputs[0], "float32") ** 2)
    gradients = tape.gradient(loss, layer.trainable_variables)
    outputs = to_numpy(outputs)
    assert all(np.isfinite(x).all() for x in keras.tree.flatten(outputs))
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in gradients)
    assert scores_of(outputs)
    for scores in scores_of(outputs):
        assert not scores[1].any()
        assert scores[0].any()
    alone = {key: array[:1] for key, array in arrays.items()}
    assert_close(outputs[0][:1], call(layer, alone), TOLERANCES[policy])


# Precision.


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize(("name", "norm"), [*EVERY, ("Transformer", "post")])
def test_half_precision(name, norm, policy):
    """Near single precision; weights stay float32, results are of the compute dtype, logits are
    float32; the policy reaches every sublayer."""
    layer, compute = shared(name, norm, policy), policy.removeprefix("mixed_")
    arrays = CASES[name].arrays
    assert {w.dtype for w in layer.weights} == {"float32"}
    assert {part.dtype_policy.name for part in layer._flatten_layers()} == {policy}
    for outputs in (layer(**arrays, **SCORES[name]), layer(**symbols(arrays), **SCORES[name])):
        dtypes = [keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten(outputs)]
        first = "float32" if name == "Transformer" else compute
        assert dtypes == [first] + [compute] * (len(dtypes) - 1)
    tolerance = TOLERANCES[policy] * getattr(layer, "num_layers", 1)  # each layer rounds anew
    if policy == "mixed_bfloat16" and layer_harness.truncates():
        tolerance *= 3  # up to twice the error, and always towards zero: they add up
    if name == "Transformer":
        tolerance *= 2
    assert_close(call(layer, arrays), call(shared(name, norm), arrays), tolerance)


# Shapes.


@pytest.mark.parametrize(("name", "norm"), [*EVERY, ("Transformer", "pre")])
def test_open_lengths(name, norm):
    """Built for lengths that are not known, and then run at some."""
    layer, arrays = shared(name, norm), CASES[name].arrays
    model = functional(layer, arrays, **SCORES[name])
    longer = keras.tree.map_structure(lambda x: np.concatenate([x, x], axis=1), arrays)
    for inputs in (arrays, longer):
        eager = layer(**inputs, **SCORES[name])
        keras.tree.assert_same_structure(model.output, eager)
        pairs = zip(keras.tree.flatten(model.output), keras.tree.flatten(eager), strict=True)
        for symbolic, value in pairs:
            assert symbolic.shape[0] is None
            sizes = zip(symbolic.shape, value.shape, strict=True)
            assert all(known in (None, size) for known, size in sizes)
        assert_close(model(inputs), to_numpy(eager))


@every_layer
def test_compute_output_shape(name):
    layer, arrays = shared(name), CASES[name].arrays
    shapes = [x.shape for key, x in arrays.items() if "mask" not in key and key != "inputs"]
    if name == "Transformer":
        shapes = [tuple(x.shape for x in arrays["inputs"])]
    expected = tuple(layer(**arrays).shape)
    assert layer.compute_output_shape(*shapes) == expected
    free = keras.tree.map_shape_structure(lambda shape: (None, None, *shape[2:]), shapes)
    assert layer.compute_output_shape(*free) == (None, None, expected[-1])


# Configurations.

ARGUMENTS = {
    "PositionalEmbedding": [{"dropout": 0.2, "output_bias": True, "first_position": 1}],
    "PositionalEmbedding learned": [{"dropout": 0.2}],
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
        {"share_embeddings": "all", "positions": "learned", "dropout": 0.1, "activation": "silu"},
    ],
}


@every_layer
def test_configuration_round_trip(name):
    by_default = [{"dropout": 0.1, "activation": "gelu", "dtype": "mixed_bfloat16"}]
    for arguments in ARGUMENTS.get(name, by_default):
        layer = CASES[name].make("pre", **arguments)
        layer(**CASES[name].arrays)
        described_as = keras.saving.serialize_keras_object(layer)
        twin = keras.saving.deserialize_keras_object(described_as)
        config = layer.get_config()
        assert twin.get_config() == config
        assert config.items() >= {k: v for k, v in arguments.items() if is_plain(k, v)}.items()
        twin(**CASES[name].arrays)
        twin.set_weights(layer.get_weights())
        expected = to_numpy(layer(**CASES[name].arrays))
        assert_close(twin(**CASES[name].arrays), expected, 1e-6)


def is_plain(key, value):
    """Whether the configuration holds an argument as it was given."""
    kinds = "initializer", "dtype", "positions"
    return isinstance(value, str | int | float) and not any(kind in key for kind in kinds)


# Training.


@pytest.mark.parametrize(("name", "norm"), [*EVERY, ("Encoder", "post"), ("Decoder", "pre")])
def test_gradients_reach_every_weight(name, norm):
    layer, arrays = shared(name, norm), CASES[name].arrays
    with tf.GradientTape() as tape:
        output = layer(**arrays)
        loss = tf.reduce_sum((output - normal(*output.shape, seed=8)) ** 2)
    assert len(layer.trainable_variables) == len(layer.weights)
    gradients = tape.gradient(loss, layer.trainable_variables)
    for weight, gradient in zip(layer.trainable_variables, gradients, strict=True):
        size = np.abs(tf.convert_to_tensor(gradient)).max()
        # A key's bias adds the same to all scores of a query, which softmax does not see.
        assert size < 1e-4 if weight.path.endswith("key/bias") else size > 1e-3, weight.path
