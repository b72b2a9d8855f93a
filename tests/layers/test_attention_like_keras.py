"""MultiHeadAttention is a drop-in for keras.layers.MultiHeadAttention."""

import inspect

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support.layer_harness import MEMORY_MASK, SOURCE, TARGET, X_MASK, assert_close, normal

B, T, S = 3, 4, 6
QUERY, VALUE, KEY = normal(B, T, 8, seed=1), normal(B, S, 10, seed=2), normal(B, S, 12, seed=3)
SAME = normal(B, T, 8, seed=4)


def some(*shape):
    """A random mask that leaves every query its first key."""
    mask = np.random.default_rng(5).random(shape) < 0.5
    mask[..., 0] = True
    return mask


# Constructor arguments, then arguments of the call.
CALLS = {
    "self": ({}, {"query": QUERY, "value": QUERY}),
    "self causal": ({}, {"query": QUERY, "value": QUERY, "use_causal_mask": True}),
    "cross": ({}, {"query": QUERY, "value": VALUE}),
    "cross causal": ({}, {"query": QUERY, "value": VALUE, "use_causal_mask": True}),
    "key and value differ": ({}, {"query": QUERY, "value": VALUE, "key": KEY}),
    "key, same sizes": ({}, {"query": QUERY, "value": SAME, "key": QUERY}),
    "value_dim": ({"value_dim": 7}, {"query": QUERY, "value": VALUE, "key": KEY}),
    "output_shape": ({"output_shape": 5}, {"query": QUERY, "value": VALUE}),
    "output_shape as tuple": ({"output_shape": (5,)}, {"query": QUERY, "value": VALUE}),
    "no bias": ({"use_bias": False, "value_dim": 7}, {"query": QUERY, "value": VALUE}),
    "one head": ({"num_heads": 1}, {"query": QUERY, "value": VALUE}),
    "dropout at rest": ({"dropout": 0.5}, {"query": QUERY, "value": VALUE}),
    "mask of rank 2": ({}, {"query": QUERY, "value": VALUE, "attention_mask": some(T, S)}),
    "mask of rank 3": ({}, {"query": QUERY, "value": VALUE, "attention_mask": some(B, T, S)}),
    "mask of rank 3, shared": (
        {},
        {"query": QUERY, "value": VALUE, "attention_mask": some(1, 1, S)},
    ),
    "mask of rank 4": ({}, {"query": QUERY, "value": VALUE, "attention_mask": some(B, 2, T, S)}),
    "mask of rank 4, shared": (
        {},
        {"query": QUERY, "value": VALUE, "attention_mask": some(B, 1, 1, S)},
    ),
    "mask of numbers": (
        {},
        {"query": QUERY, "value": VALUE, "attention_mask": some(T, S).astype("int32")},
    ),
    "value_mask": ({}, {"query": QUERY, "value": VALUE, "value_mask": MEMORY_MASK}),
    "key_mask": ({}, {"query": QUERY, "value": VALUE, "key": KEY, "key_mask": MEMORY_MASK}),
    "all masks": (
        {"value_dim": 7, "output_shape": 5},
        {
            "query": QUERY,
            "value": VALUE,
            "key": KEY,
            "value_mask": some(B, S),
            "key_mask": MEMORY_MASK,
            "attention_mask": some(B, T, S),
            "use_causal_mask": True,
        },
    ),
}


def pair(arguments, query, value, key=None):
    """Their layer and ours, with the same random weights."""
    arguments = {"num_heads": 2, "key_dim": 3} | arguments
    theirs, ours = keras.layers.MultiHeadAttention(**arguments), kt.MultiHeadAttention(**arguments)
    for layer in (theirs, ours):
        layer.build(query.shape, value.shape, None if key is None else key.shape)
    weights = [normal(*w.shape, seed=i) / 2 for i, w in enumerate(theirs.get_weights())]
    theirs.set_weights(weights)
    ours.set_weights(theirs.get_weights())
    return theirs, ours


@pytest.mark.parametrize("call", CALLS)
def test_equal(call):
    arguments, inputs = CALLS[call]
    theirs, ours = pair(arguments, inputs["query"], inputs["value"], inputs.get("key"))
    assert_close(ours(**inputs), theirs(**inputs))
    assert_close(
        ours(**inputs, return_attention_scores=True), theirs(**inputs, return_attention_scores=True)
    )


@pytest.mark.parametrize("call", ["self", "key and value differ", "value_dim", "no bias"])
def test_same_weights_in_the_same_order(call):
    arguments, inputs = CALLS[call]
    theirs, ours = pair(arguments, inputs["query"], inputs["value"], inputs.get("key"))
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    theirs.set_weights(ours.get_weights())  # and back
    assert_close(theirs(**inputs), np.array(ours(**inputs)))


@pytest.mark.parametrize("causal", [False, True])
def test_equal_with_masks_that_keras_carries(causal):
    query, value = (
        keras.layers.Embedding(20, 8, mask_zero=True, embeddings_initializer="normal")(ids)
        for ids in (TARGET, SOURCE)
    )
    theirs, ours = pair({}, query, value)
    by_ours, scores = ours(query, value, use_causal_mask=causal, return_attention_scores=True)
    by_theirs, their_scores = theirs(  # Keras takes the masks away from its inputs: it comes last
        query, value, use_causal_mask=causal, return_attention_scores=True
    )
    assert_close(np.array(by_ours)[X_MASK], np.array(by_theirs)[X_MASK])
    rows = np.broadcast_to(X_MASK[:, None], (B, 2, T))
    assert_close(np.array(scores)[rows], np.array(their_scores)[rows])
    assert not np.array(scores)[~rows].any()  # a padded query attends to nothing


def test_same_arguments_in_the_same_order():
    ours, theirs = (
        inspect.signature(layer.call).parameters
        for layer in (kt.MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
    ours, theirs = (
        {p.name: p.default for p in inspect.signature(layer.__init__).parameters.values()}
        for layer in (kt.MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    own = ["output_initializer", "positions", "max_distance"]  # those that Keras does not have
    assert list(ours)[-4:-1] == own  # before **kwargs
    assert [ours.pop(name) for name in own] == [None] * 3
    assert list(ours.items()) == [item for item in theirs.items() if item[0] in ours]


# Arguments: those of Keras' layer, and how the others are refused.

PENALTIES = {
    "kernel_regularizer": keras.regularizers.L2(0.1),
    "bias_regularizer": "l1",
    "activity_regularizer": keras.regularizers.L2(0.01),
    "kernel_constraint": keras.constraints.MaxNorm(0.3),
    "bias_constraint": "non_neg",
}


@pytest.mark.parametrize("names", [[name] for name in PENALTIES] + [[*PENALTIES]])
def test_penalties_are_those_of_keras(names):
    theirs, ours = pair({name: PENALTIES[name] for name in names}, QUERY, VALUE)
    assert_close(ours(QUERY, VALUE), theirs(QUERY, VALUE))
    regularizers = [name for name in names if name.endswith("regularizer")]
    assert len(ours.losses) == 4 * len(regularizers)
    assert_close(np.array(ours.losses), np.array(theirs.losses), 1e-6)


def test_fit_as_keras_does():
    """With penalties that act: the same losses and the same weights after two updates."""
    trained = []
    for layer in pair(PENALTIES, QUERY, VALUE):
        inputs = keras.Input((None, 8)), keras.Input((None, 10))
        model = keras.Model(inputs, layer(*inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        target = normal(B, T, 8, seed=7)
        history = model.fit((QUERY, VALUE), target, epochs=2, batch_size=B, verbose=0).history
        trained.append([np.array(history["loss"]), *model.get_weights()])
    assert_close(trained[1], trained[0])
    losses, kernel, bias, *_ = trained[1]
    mse = np.mean((target - np.array(model.predict((QUERY, VALUE), verbose=0))) ** 2)
    assert model.evaluate((QUERY, VALUE), target, verbose=0) > mse + 0.1
    assert bias.min() >= 0 and np.linalg.norm(kernel, axis=0).max() < 0.3 + 1e-5


def test_round_trip_of_penalties():
    layer = kt.MultiHeadAttention(2, 3, **PENALTIES)
    described_as = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(described_as)
    assert again.get_config() == layer.get_config()
    layer(QUERY, VALUE), again(QUERY, VALUE)
    again.set_weights(layer.get_weights())
    assert_close(np.array(again.losses[4:]), np.array(layer.losses[4:]), 1e-6)
    assert type(again.query_dense.kernel.constraint) is keras.constraints.MaxNorm


def test_integers_of_numpy():
    sizes = dict(num_heads=2, key_dim=3, value_dim=4)
    layer = kt.MultiHeadAttention(**{name: np.int64(size) for name, size in sizes.items()})
    config = layer.get_config()
    assert {name: config[name] for name in sizes} == sizes
    assert all(type(config[name]) is int for name in sizes)
    assert layer(QUERY, VALUE).shape == (B, T, 8)
    keras.Sequential([layer]).to_json()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_axes", 2),
        ("sliding_window", 4),
        ("flash_attention", True),
        ("use_gate", True),
    ],
)
def test_what_is_not_there_names_itself(name, value):
    with pytest.raises(ValueError, match=f"Unrecognized keyword arguments .*{name}"):
        kt.MultiHeadAttention(2, 3, **{name: value})


@pytest.mark.parametrize("output_shape", [(3, 4), ()])
def test_output_shape_of_several_axes(output_shape):
    with pytest.raises(ValueError, match="values to unpack"):
        kt.MultiHeadAttention(2, 3, output_shape=output_shape)


def test_keys_and_values_of_different_lengths():
    layer = kt.MultiHeadAttention(2, 3)
    key = normal(B, 5, 12)
    with pytest.raises(ValueError, match="must be equal, received 5, 6"):
        layer(QUERY, VALUE, key)
    layer(QUERY, VALUE, normal(B, 6, 12))
    assert layer.compute_output_shape((3, 4, 8), (3, None, 10), (3, 5, 12)) == (3, 4, 8)


def test_policies_of_single_projections():
    policies = keras.dtype_policies.DTypePolicyMap()
    policies["mha/key"] = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    layer = kt.MultiHeadAttention(2, 3, dtype=policies, name="mha")
    layer.build(QUERY.shape, VALUE.shape)
    kernels = [layer.query_dense.kernel, layer.key_dense.kernel]
    assert [kernel.dtype for kernel in kernels] == ["float32", "int8"]
