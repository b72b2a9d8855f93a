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
    assert list(ours.items()) == list(theirs.items())


def test_none_by_position():
    theirs, ours = pair({}, QUERY, VALUE)
    expected = np.array(theirs(QUERY, VALUE, attention_mask=some(B, T, S)))
    assert_close(ours(QUERY, VALUE, None, None, None, None, some(B, T, S)), expected)
