"""What Keras expects of every layer and of the model: shapes, dtypes, configurations, training."""

import functools

import keras
import numpy as np
import pytest

from tests.support import layer_harness
from tests.support.layer_harness import (
    CASES,
    NORMS,
    POLICIES,
    assert_close,
    build,
    functional,
    symbols,
    to_numpy,
)

WITH_SCORES = [name for name, case in CASES.items() if case.has_scores]
CALLS = [(name, {}) for name in CASES] + [
    (name, {"return_attention_scores": True}) for name in WITH_SCORES
]
every_call = pytest.mark.parametrize(("name", "kwargs"), CALLS)


@functools.cache  # for tests that do not train
def shared(name, norm="post", policy="float32"):
    return build(name, norm, policy)


every_layer = pytest.mark.parametrize("name", CASES)


# Shapes and dtypes.


@every_call
def test_open_lengths(name, kwargs):
    """Built for lengths that are not known, and then run at some."""
    layer, arrays = build(name), CASES[name].arrays
    model = functional(layer, arrays, **kwargs)
    eager = layer(**arrays, **kwargs)
    keras.tree.assert_same_structure(model.output, eager)
    pairs = zip(keras.tree.flatten(model.output), keras.tree.flatten(eager), strict=True)
    for symbolic, value in pairs:
        sizes = list(zip(symbolic.shape, value.shape, strict=True))
        assert sizes[0][0] is None
        assert all(known in (None, size) for known, size in sizes)
    assert_close(model(arrays), to_numpy(eager))
    longer = keras.tree.map_structure(lambda x: np.concatenate([x, x], axis=1), arrays)
    assert_close(model(longer), to_numpy(layer(**longer, **kwargs)))


@every_layer
def test_compute_output_shape(name):
    layer, arrays = shared(name), CASES[name].arrays
    shapes = [x.shape for key, x in arrays.items() if "mask" not in key and key != "inputs"]
    if name == "Transformer":
        shapes = [tuple(x.shape for x in arrays["inputs"])]
    assert layer.compute_output_shape(*shapes) == tuple(layer(**arrays).shape)
    free = keras.tree.map_shape_structure(lambda shape: (None, None, *shape[2:]), shapes)
    expected = (None, None, layer(**arrays).shape[-1])
    assert layer.compute_output_shape(*free) == expected


@pytest.mark.parametrize("policy", POLICIES[1:])
@every_call
def test_precision(name, kwargs, policy):
    """Weights stay float32, results are of the compute dtype; logits are float32 always."""
    layer = shared(name, policy=policy)
    assert {w.dtype for w in layer.weights} == {"float32"}
    compute = policy.removeprefix("mixed_")
    arrays = CASES[name].arrays
    for outputs in (layer(**arrays, **kwargs), layer(**symbols(arrays), **kwargs)):
        dtypes = [keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten(outputs)]
        logits = ["float32"] if name == "Transformer" else [compute]
        assert dtypes == logits + [compute] * (len(dtypes) - 1)


@every_layer
def test_global_precision(name):
    """The policy of the process reaches every sublayer."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        layer = CASES[name].make()
        layer(**CASES[name].arrays)
    finally:
        keras.config.set_dtype_policy("float32")
    policies = {part.dtype_policy.name for part in layer._flatten_layers()}
    assert policies == {"mixed_bfloat16"}


# Configurations.

ARGUMENTS = {
    "PositionalEmbedding": [{"dropout": 0.2}],
    "PositionalEmbedding learned": [{"dropout": 0.2}],
    "MultiHeadAttention": [
        {"dropout": 0.1, "seed": 3, "use_bias": False, "name": "own_name"},
        {"kernel_initializer": "he_normal", "bias_initializer": "ones", "value_dim": None},
        {"output_initializer": "zeros"},
        {"kernel_regularizer": keras.regularizers.L2(), "seed": 3},
    ],
    "FeedForward": [
        {"dropout": 0.2, "activation": "gelu"},
        {"activation": keras.ops.tanh},
        {"kernel_initializer": "he_normal", "output_initializer": "zeros"},
    ],
    **dict.fromkeys(
        ("EncoderLayer", "DecoderLayer"),
        [{"dropout": 0.1, "activation": "gelu", "dtype": "mixed_bfloat16"}, {"depth": 3}],
    ),
    "Transformer": [
        {"share_embeddings": "target", "activation": "silu"},
        {"share_embeddings": "all", "positions": "learned", "dropout": 0.1},
    ],
}


@every_layer
def test_configuration_round_trip(name):
    by_default = [{"dropout": 0.1, "activation": "gelu", "dtype": "mixed_bfloat16"}]
    for arguments in ARGUMENTS.get(name, by_default):
        layer = CASES[name].make("pre", **arguments)
        layer(**CASES[name].arrays)
        config = layer.get_config()
        twin = type(layer).from_config(config)
        assert twin.get_config() == config
        assert config.items() >= {k: v for k, v in arguments.items() if is_plain(k, v)}.items()
        twin(**CASES[name].arrays)
        twin.set_weights(layer.get_weights())
        expected = to_numpy(layer(**CASES[name].arrays))
        assert_close(twin(**CASES[name].arrays), expected, 1e-6)
        described_as = keras.saving.serialize_keras_object(layer)
        again = keras.saving.deserialize_keras_object(described_as)
        assert again.get_config() == config


def is_plain(key, value):
    """Whether the configuration holds an argument as it was given."""
    return isinstance(value, str | int | float) and key != "dtype" and "initializer" not in key


# Training.


def trained_weights(name, norm, run_eagerly=True, **kwargs):
    """Weights before and after one step of gradient descent by `fit`."""
    layer = build(name, norm, **kwargs)
    arrays = CASES[name].arrays
    model = functional(layer, arrays)
    model.compile(keras.optimizers.SGD(1.0), "mean_squared_error", run_eagerly=run_eagerly)
    before = [(w.path, np.array(w)) for w in model.trainable_variables]
    target = layer_harness.normal(*layer(**arrays).shape, seed=8)
    model.fit(arrays, target, batch_size=3, verbose=0)
    after = [np.array(w) for w in model.trainable_variables]
    assert len(layer.weights) == len(before)  # nothing that cannot be trained
    return [(path, old, new) for (path, old), new in zip(before, after, strict=True)]


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        (name, norm)
        for name in CASES
        for norm in NORMS
        if name != "Transformer" and (norm == "post" or "coder" in name)
    ],
)
def test_fit_step_changes_every_weight(name, norm):
    check_trained(trained_weights(name, norm))


@pytest.mark.parametrize("share", ["target", "all"])
def test_fit_step_changes_every_weight_of_the_model(share):
    in_graph = share == "all"
    check_trained(
        trained_weights("Transformer", "pre", share_embeddings=share, run_eagerly=not in_graph)
    )


def check_trained(weights):
    for path, old, new in weights:
        moved = np.abs(new - old).max()
        if path.endswith("key/bias"):
            # It adds the same to all scores of a query, which softmax does not see.
            assert moved < 1e-6, path
        else:
            assert moved > 1e-4, path
