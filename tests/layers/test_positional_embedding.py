"""Positions and embeddings: the paper's numbers, any position, any precision."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support import layer_harness, oracle
from tests.support.layer_harness import TOLERANCES, assert_close, normal

IDS = np.array([[2, 5, 7, 0]])


def embedding(table, **kwargs):
    layer = kt.PositionalEmbedding(*table.shape, **kwargs)
    layer.build()
    layer.set_weights([table, *layer.get_weights()[1:]])
    return layer


def test_positions_1_to_3_of_width_4():
    by_hand = [[0.8415, 0.5403, 0.0100, 0.99995], [0.9093, -0.4161, 0.0200, 0.9998]]
    by_hand.append([0.1411, -0.9900, 0.0300, 0.99955])
    np.testing.assert_allclose(kt.sinusoidal_encoding(3, 4, start=1), by_hand, atol=1e-4)


def test_equals_the_formula_at_any_position():
    assert_close(kt.sinusoidal_encoding(10_001, 10), oracle.positions(10_001, 10))
    for number in (int, tf.constant, np.int64):
        found = kt.sinusoidal_encoding(number(11), 16, start=number(9_990))
        assert found.dtype == "float32"
        assert_close(found, oracle.positions(11, 16, 9_990))
    found = kt.sinusoidal_encoding(1, 64, start=1_000_000)
    np.testing.assert_allclose(found, oracle.positions(1, 64, 1_000_000), atol=1e-4)


@pytest.mark.parametrize("d_model", [2, 10])
def test_frequencies_of_tensor2tensor(d_model):
    """The i-th of D/2 sines and cosines has the frequency 10000^(-i / (D/2 - 1))."""
    positions = np.arange(300, 311)[:, np.newaxis]
    half = d_model // 2
    angles = positions * np.power(1e-4, np.arange(half) / max(half - 1, 1))
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(11, d_model)
    assert_close(kt.sinusoidal_encoding(11, d_model, 300, frequencies="tensor2tensor"), expected)


def test_negative_ids_are_not_counted_from_the_end_in_a_graph():
    layer = embedding(normal(9, 8))
    traced = tf.function(layer, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    assert_close(traced(IDS), oracle.embed(layer.get_weights()[0], IDS))
    for wrong in (-1, 9):
        with pytest.raises(tf.errors.InvalidArgumentError, match="= 9 is not in"):
            traced(np.full((1, 2), wrong, "int32"))


def test_first_position():
    zero, one = (kt.PositionalEmbedding(9, 6, first_position=n) for n in (0, 1))
    one.build()
    zero(IDS)
    one.set_weights(zero.get_weights())
    np.testing.assert_array_equal(one(IDS), zero(IDS, start=1))
    np.testing.assert_array_equal(one(IDS, start=tf.constant(7)), zero(IDS, start=8))


def test_learned_positions():
    layer = embedding(normal(9, 8), positions="learned", max_length=6)
    table, positions = layer.get_weights()
    assert positions.shape == (6, 8)
    assert_close(layer(IDS), oracle.embed(table, IDS, positions))
    assert_close(layer(IDS, start=2), oracle.embed(table, IDS, positions[2:]))  # up to the last
    assert_close(layer(IDS, start=tf.constant(2)), oracle.embed(table, IDS, positions[2:]))


def test_neighbours_stay_apart_in_half_precision():
    """bfloat16 itself cannot tell position 257 from 256."""
    layer = embedding(np.zeros((9, 16), "float32"), dtype="mixed_bfloat16")
    encoded = layer(np.ones((1, 1200), int))[0]
    assert encoded.dtype == "bfloat16"
    encoded = layer_harness.to_numpy(encoded)
    assert len(np.unique(encoded, axis=0)) == 1200
    np.testing.assert_allclose(encoded, oracle.positions(1200, 16), rtol=0, atol=2**-8)


@pytest.mark.parametrize("policy", TOLERANCES)
def test_logits_are_the_transposed_embedding(policy):
    table, x, bias = normal(9, 8), normal(2, 3, 8, seed=1), normal(9, seed=2)
    layer = embedding(table, dtype=policy, output_bias=True)
    layer.output_bias.assign(bias)
    expected = x.astype("float64") @ table.T.astype("float64") + bias
    for some, wanted in ((x, expected), (x[:, 0], expected[:, 0]), (x[0, 0], expected[0, 0])):
        logits = layer.logits(some)
        assert logits.dtype == policy.removeprefix("mixed_")
        assert_close(logits, wanted, 2 * TOLERANCES[policy])
    assert getattr(layer.logits(layer(IDS)), "_keras_mask", None) is None
    assert kt.PositionalEmbedding(9, 8).logits(x).shape == (2, 3, 9)  # builds itself


def test_logits_of_a_functional_model_follow_the_embedding(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    layer = kt.PositionalEmbedding(9, 8)
    model = keras.Model(ids, layer.logits(keras.layers.Dense(8)(layer(ids))))
    assert len(model.to_json()) < 10_000  # no matrix in there
    model.save(tmp_path / "model.keras")
    for tied in (model, keras.saving.load_model(tmp_path / "model.keras")):
        table, kernel, bias = normal(9, 8, seed=3), normal(8, 8, seed=4), normal(8, seed=5)
        tied.set_weights([table, kernel, bias])
        assert_close(tied(IDS), (oracle.embed(table, IDS) @ kernel + bias) @ table.T, 1e-4)


def test_starts_with_unit_variance_and_drops_in_training_only():
    keras.utils.set_random_seed(1)
    layer = kt.PositionalEmbedding(2000, 64, dropout=0.5)
    layer.build()
    assert 8 * layer.get_weights()[0].std() == pytest.approx(1, rel=0.02)
    np.testing.assert_array_equal(layer(IDS), layer(IDS, training=False))
    dropped, whole = np.array(layer(IDS, training=True)), np.array(layer(IDS))
    assert 0 < (dropped == 0).sum() < dropped.size
    np.testing.assert_allclose(dropped[dropped != 0], 2 * whole[dropped != 0], rtol=1e-5)


# What is out of range: an error where values are known, else never a number.
OUT_OF_RANGE = [([[1, 9]], 0), ([[1, -1]], 0), ([[1, 2**32 + 5]], 0), ([[1.0, 2.5]], 0)]
OUT_OF_RANGE += [([[1, 2]], 3), ([[1, 2, 3, 4, 5]], 0), ([[1, 2]], -1)]


@pytest.mark.parametrize("ids, start", OUT_OF_RANGE)
def test_out_of_range_is_no_number(ids, start):
    layer = embedding(normal(9, 8), positions="learned", max_length=4)
    ids, start, embed = np.array(ids), np.array(start), lambda ids, start: layer(ids, start=start)
    signature = [tf.TensorSpec([None, None], ids.dtype), tf.TensorSpec([], "int32")]
    ways = False, True
    in_graph, compiled = (tf.function(embed, signature, jit_compile=by_xla) for by_xla in ways)
    lost = np.arange(ids.shape[1]) == (0 if start < 0 else ids.shape[1] - 1)
    assert (np.isnan(compiled(ids, np.int32(start))) == lost[:, None]).all()  # no other token
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        assert (np.isnan(in_graph(ids, np.int32(start))) == lost[:, None]).all()
    for known in (int(start), start, tf.constant(start)):
        with pytest.raises(ValueError, match=r"Ids must|has 4 learned positions, received ids"):
            layer(ids, start=known)
