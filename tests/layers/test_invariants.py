"""What must hold for every layer, whatever its norm and precision.

The whole model has the same tests in tests/test_transformer.py.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support import layer_harness
from tests.support.layer_harness import (
    CASES,
    NORMS,
    POLICIES,
    TOLERANCES,
    X,
    assert_close,
    build,
    normal,
)

NORMED = ["EncoderLayer", "Encoder", "DecoderLayer", "Decoder", "DecoderLayer alone"]
# A layer without a norm is tested once.
LAYERS = [(name, norm) for name in NORMED for norm in NORMS]
ATTENDING = [("MultiHeadAttention", "post"), *LAYERS]
EVERY = [("FeedForward", "post"), ("PositionalEmbedding", "post"), *ATTENDING]


@functools.cache  # nothing in here changes a layer's weights
def shared(name, norm="post", policy="float32"):
    return build(name, norm, policy)


policies = pytest.mark.parametrize("policy", POLICIES[:2])  # float16: the row of padding


def call(layer, arrays, **kwargs):
    return layer_harness.to_numpy(layer(**arrays, **kwargs))


def scores_of(outputs):
    """All attention weights that a layer has returned, (B, H, T, S) each."""
    return [x for x in keras.tree.flatten(outputs) if x.ndim == 4]


# The future.


def causal_call(name, layer, x, **kwargs):
    """Runs a layer that must not look ahead on a target (B, T, D) and the usual memory."""
    if name == "MultiHeadAttention":
        return call(layer, {"query": x, "value": x}, use_causal_mask=True, **kwargs)
    if "Encoder" in name:
        return call(layer, {"x": x}, use_causal_mask=True, **kwargs)
    return call(layer, CASES[name].arrays | {"x": x}, **kwargs)


@pytest.mark.parametrize(
    ("training", "policy"), [(False, "float32"), (False, "mixed_bfloat16"), (True, "float32")]
)
@pytest.mark.parametrize(("name", "norm"), ATTENDING)
def test_no_position_sees_the_future(name, norm, training, policy):
    """To the last bit: what is masked has weight 0, not a small one."""
    layer = build(name, norm, policy, dropout=0.3)
    seeds = [(variable, variable.numpy()) for variable in layer_harness.seed_states(layer)]

    def run(x, with_scores):
        for variable, seed in seeds:
            variable.assign(seed)
        outputs = causal_call(
            name, layer, x, training=training, return_attention_scores=with_scores
        )
        return (outputs[0], scores_of(outputs)) if with_scores else (outputs, [])

    expected, expected_scores = run(X, True)
    for first in range(1, X.shape[1]):
        changed = X.copy()
        changed[:, first:] = normal(*changed[:, first:].shape, seed=first + 10)
        for with_scores in (False, True):
            actual, scores = run(changed, with_scores)
            np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
            assert np.abs(actual[:, first:] - expected[:, first:]).max() > 0.05
        for one, other in zip(scores, expected_scores, strict=True):
            np.testing.assert_array_equal(one[:, :, :first], other[:, :, :first])


# Padding.


def pad(array, axis=1, more=3, value=0):
    widths = [(0, more if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths, constant_values=value)


@policies
@pytest.mark.parametrize(("name", "norm"), ATTENDING)
def test_more_padding_changes_nothing(name, norm, policy):
    """Longer inputs, masked; what stands in the padding is large and must not be seen."""
    layer = shared(name, norm, policy)
    arrays = CASES[name].arrays
    longer = {key: pad(array, value=0 if "mask" in key else 9) for key, array in arrays.items()}
    length = next(iter(arrays.values())).shape[1]
    assert_close(call(layer, longer)[:, :length], call(layer, arrays), TOLERANCES[policy])


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
    outputs = layer_harness.to_numpy(outputs)
    assert all(np.isfinite(x).all() for x in keras.tree.flatten(outputs))
    assert all(np.isfinite(tf.convert_to_tensor(g)).all() for g in gradients)
    assert scores_of(outputs)
    for scores in scores_of(outputs):
        assert not scores[1].any()
        assert scores[0].any()
    alone = {key: array[:1] for key, array in arrays.items()}
    assert_close(outputs[0][:1], call(layer, alone), TOLERANCES[policy])


# Batches.


@policies
@pytest.mark.parametrize(("name", "norm"), EVERY)
def test_a_batch_equals_its_rows_one_by_one(name, norm, policy):
    layer = shared(name, norm, policy)
    arrays = CASES[name].arrays
    rows = [
        call(layer, {key: array[row : row + 1] for key, array in arrays.items()})
        for row in range(len(next(iter(arrays.values()))))
    ]
    assert_close(call(layer, arrays), np.concatenate(rows), TOLERANCES[policy])


@pytest.mark.parametrize("policy", POLICIES[1:])
@pytest.mark.parametrize(("name", "norm"), EVERY)
def test_half_precision_stays_near_single(name, norm, policy):
    layer = shared(name, norm, policy)
    expected = call(shared(name, norm, "float32"), CASES[name].arrays)
    tolerance = TOLERANCES[policy] * getattr(layer, "num_layers", 1)  # each layer rounds anew
    if policy == "mixed_bfloat16" and layer_harness.truncates():
        tolerance *= 3  # up to twice the error, and always towards zero: they add up
    assert_close(call(layer, CASES[name].arrays), expected, tolerance)
