"""Positions and embeddings: the paper's numbers, any position, any precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support import layer_harness, oracle
from tests.support.layer_harness import TOLERANCES, assert_close, normal

IDS = np.array([[2, 5, 7, 0]])


def embedding(table, **kwargs):
    """A PositionalEmbedding with this table."""
    layer = kt.PositionalEmbedding(*table.shape, **kwargs)
    layer.build()
    layer.set_weights([table, *layer.get_weights()[1:]])
    return layer


# Sines and cosines.


def test_positions_1_to_3_of_width_4():
    by_hand = [
        [0.8415, 0.5403, 0.0100, 0.99995],
        [0.9093, -0.4161, 0.0200, 0.9998],
        [0.1411, -0.9900, 0.0300, 0.99955],
    ]
    np.testing.assert_allclose(kt.sinusoidal_encoding(3, 4, start=1), by_hand, atol=1e-4)


@pytest.mark.parametrize("d_model", [2, 10, 512])
def test_equals_the_formula_up_to_position_10000(d_model):
    assert_close(kt.sinusoidal_encoding(10_001, d_model), oracle.positions(10_001, d_model))


@pytest.mark.parametrize("number", [int, tf.constant, np.int64])
@pytest.mark.parametrize("start", [0, 1, 9_990])
def test_starts_anywhere(start, number):
    actual = kt.sinusoidal_encoding(number(11), 16, start=number(start))
    assert actual.dtype == "float32"
    assert_close(actual, oracle.positions(11, 16, start))


def test_length_and_start_known_in_the_graph_only():
    traced = tf.function(
        lambda length, start: kt.sinusoidal_encoding(length, 6, start),
        input_signature=[tf.TensorSpec((), tf.int32)] * 2,
    )
    assert_close(traced(5, 300), oracle.positions(5, 6, 300))


def test_a_shift_is_linear():
    """PE(i + δ) = M(δ)·PE(i) with one matrix, of rotations, for all i."""
    d_model = 8
    encoding = np.array(kt.sinusoidal_encoding(400, d_model), "float64")
    for shift in (1, 10, 200):
        matrix = np.zeros((d_model, d_model))
        for i in range(0, d_model, 2):
            angle = shift / 10000 ** (i / d_model)
            sine, cosine = np.sin(angle), np.cos(angle)
            matrix[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
        np.testing.assert_allclose(encoding[:-shift] @ matrix.T, encoding[shift:], atol=1e-5)


# The layer.


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16"])
def test_equals_the_formula(dtype):
    table = normal(9, 8)
    assert_close(embedding(table)(IDS.astype(dtype)), oracle.embed(table, IDS))


def test_negative_ids_are_not_counted_from_the_end_in_a_graph():
    layer = embedding(normal(9, 8))
    traced = tf.function(layer, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    assert_close(traced(IDS), oracle.embed(layer.get_weights()[0], IDS))
    for wrong in (-1, 9):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 9 is not in \[0, 9\)"):
            traced(np.full((1, 2), wrong, "int32"))


def test_learned_positions():
    layer = embedding(normal(9, 8), positions="learned", max_length=6)
    table, positions = layer.get_weights()
    assert positions.shape == (6, 8)
    assert_close(layer(IDS), oracle.embed(table, IDS, positions))
    assert_close(layer(IDS, start=2), oracle.embed(table, IDS, positions[2:]))
    assert_close(layer(IDS, start=tf.constant(2)), oracle.embed(table, IDS, positions[2:]))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_neighbours_stay_apart_in_half_precision(policy):
    """bfloat16 itself cannot tell position 257 from 256."""
    layer = embedding(np.zeros((9, 16), "float32"), dtype=policy)
    encoded = layer(np.ones((1, 1200), int))[0]
    assert encoded.dtype == policy.removeprefix("mixed_")
    encoded = layer_harness.to_numpy(encoded)
    assert len(np.unique(encoded, axis=0)) == 1200
    half_a_unit = {"mixed_bfloat16": 2**-8, "mixed_float16": 2**-11}[policy]
    np.testing.assert_allclose(encoded, oracle.positions(1200, 16), rtol=0, atol=half_a_unit)


@pytest.mark.parametrize("policy", TOLERANCES)
def test_logits_are_the_transposed_embedding(policy):
    table, x = normal(9, 8), normal(2, 3, 8, seed=1)
    logits = embedding(table, dtype=policy).logits(x)
    assert logits.dtype == policy.removeprefix("mixed_")
    expected = x.astype("float64") @ table.T.astype("float64")
    assert_close(logits, expected, 2 * TOLERANCES[policy])


@pytest.mark.parametrize("policy", TOLERANCES)
def test_logits_of_a_functional_model_follow_the_embedding(policy, tmp_path):
    """One matrix, however it changes, also in what is saved, cloned and exported."""
    ids = keras.Input((None,), dtype="int32")
    layer = kt.PositionalEmbedding(9, 8, dtype=policy)
    model = keras.Model(ids, layer.logits(keras.layers.Dense(8, dtype=policy)(layer(ids))))
    assert len(model.to_json()) < 10_000  # no matrix in there
    assert [weight.shape for weight in model.weights] == [(9, 8), (8, 8), (8,)]
    model.save(tmp_path / "model.keras")
    for tied in (model, keras.saving.load_model(tmp_path / "model.keras")):
        table, kernel, bias = normal(9, 8, seed=3), normal(8, 8, seed=4), normal(8, seed=5)
        tied.set_weights([table, kernel, bias])
        expected = (oracle.embed(table, IDS) @ kernel + bias) @ table.T
        assert_close(tied(IDS), expected, 20 * TOLERANCES[policy])
        assert tied(IDS).dtype == policy.removeprefix("mixed_")


# What is out of range: an error where values are known, else never a number.

OUT_OF_RANGE = {
    "id": ([[1, 9]], 0),
    "negative id": ([[1, -1]], 0),
    "id of 33 bits": ([[1, 2**32 + 5]], 0),
    "part of an id": ([[1.0, 2.5]], 0),
    "position": ([[1, 2]], 3),
    "start": ([[1, 2, 3, 4, 5]], 0),
    "negative position": ([[1, 2]], -1),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_out_of_range_is_no_number(name):
    layer = embedding(normal(9, 8), positions="learned", max_length=4)
    ids, start = map(np.array, OUT_OF_RANGE[name])

    def in_graph(ids, start, jit_compile):
        specs = tf.TensorSpec([None, None], ids.dtype), tf.TensorSpec([], tf.int32)
        return tf.function(
            lambda ids, start: layer(ids, start=start), specs, jit_compile=jit_compile
        )(ids, np.int32(start))

    lost = np.arange(ids.shape[1]) == (0 if name == "negative position" else ids.shape[1] - 1)
    assert (np.isnan(in_graph(ids, start, True)) == lost[:, None]).all()  # no other token
    try:
        assert (np.isnan(in_graph(ids, start, False)) == lost[:, None]).all()
    except tf.errors.InvalidArgumentError:
        pass
    for known in (int(start), start, tf.constant(start)):
        with pytest.raises(ValueError, match=r"Ids must|has 4 learned positions, received ids"):
            layer(ids, start=known)
    for last in ([[8, 0]], 2), ([[1, 2, 3, 4]], 0):  # the end of the range
        assert np.isfinite(in_graph(*map(np.array, last), True)).all()


@pytest.mark.parametrize("side, wrong", [("source", "length"), ("target", "id")])
def test_training_under_xla_is_no_number_out_of_range(side, wrong):
    model = layer_harness.transformer(num_layers=1, positions="learned", max_length=4)
    model.compile("sgd", kt.SmoothedCrossEntropy(), jit_compile=True)
    ids = {"source": np.full((2, 4), 5), "target": np.full((2, 4), 5)}
    ids[side] = np.full((2, 4), 60) if wrong == "id" else np.full((2, 6), 5)
    labels = np.full(ids["target"].shape, 5)
    # Of lengths that the trace does not know.
    dataset = tf.data.Dataset.from_tensor_slices((tuple(ids.values()), labels))
    dataset = dataset.padded_batch(2, (([None], [None]), [None]))
    assert np.isnan(model.evaluate(dataset, verbose=0))
    assert np.isnan(model.fit(dataset, shuffle=False, verbose=0).history["loss"][0])


def test_logits_carry_no_mask_and_take_any_rank():
    layer = embedding(normal(9, 8))
    x = layer(IDS)
    expected = np.array(x) @ layer.get_weights()[0].T
    assert_close(layer.logits(x), expected)
    assert_close(layer.logits(x[:, 0]), expected[:, 0])
    assert_close(layer.logits(x[0, 0]), expected[0, 0])
    assert_close(layer(x, reverse=True), expected)
    assert getattr(layer.logits(x), "_keras_mask", None) is None
    assert kt.PositionalEmbedding(9, 8).logits(normal(2, 8)).shape == (2, 9)  # builds itself


def test_gradients_come_by_lookup_and_by_logits():
    layer = embedding(normal(9, 8))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer.logits(layer(IDS)))
    gradient = tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value))
    assert np.abs(gradient[8]).max() > 0  # an id that the text lacks


def test_starts_with_unit_variance():
    keras.utils.set_random_seed(1)
    layer = kt.PositionalEmbedding(2000, 64)
    layer.build()
    assert 8 * layer.get_weights()[0].std() == pytest.approx(1, rel=0.02)


def test_dropout_in_training_only():
    layer = embedding(normal(9, 8), dropout=0.5)
    np.testing.assert_array_equal(layer(IDS), layer(IDS, training=False))
    dropped, whole = np.array(layer(IDS, training=True)), np.array(layer(IDS))
    assert 0 < (dropped == 0).sum() < dropped.size
    np.testing.assert_allclose(dropped[dropped != 0], 2 * whole[dropped != 0], rtol=1e-5)


@pytest.mark.parametrize("position", [50_000, 131_072, 1_000_000])
def test_far_positions(position):
    angles = position * 10_000.0 ** (-np.arange(32) / 32)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(1, 64)
    found = kt.sinusoidal_encoding(1, 64, start=position)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_start_is_a_scalar():
    layer = kt.PositionalEmbedding(20, 4)
    with pytest.raises(ValueError, match="start must be a scalar.*received shape"):
        layer(np.full((3, 3), 5), start=np.array([0, 5, 7]))
