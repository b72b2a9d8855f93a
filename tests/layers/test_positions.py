"""Relative positions in one attention: the papers' equations, and other implementations."""

import keras
import keras_nlp
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.layers import positions as positions_module
from keras_transformer.layers.positions import PositionBias, Positions, buckets, distances
from tests.support import position_oracle
from tests.support.layer_harness import TOLERANCES, assert_close, normal

D, H, K = 10, 8, 6
X = normal(2, 9, D)
LENGTHS = np.array([9, 5])
PADDING = np.arange(9) < LENGTHS[:, None]  # (B, T)
MASK = np.tril(np.ones((9, 9), bool)) & PADDING[:, None]

# Distances that occur are larger than those that are told apart.
SCHEMES = {
    "relative": lambda: kt.RelativePositions(3),
    "bucketed": lambda: kt.BucketedPositions(8, 6),
    "bucketed, causal": lambda: kt.BucketedPositions(8, 6, bidirectional=False),
    "rotary": kt.RotaryPositions,
    "disentangled": lambda: kt.DisentangledPositions(3),
}
schemes = pytest.mark.parametrize("name", SCHEMES)


def attention(positions, policy="float32", **options):
    """An attention with weights at random: the positions' ones of deviation 1."""
    layer = kt.MultiHeadAttention(H, K, positions=positions, dtype=policy, **options)
    layer.build(X.shape, X.shape)
    random = np.random.default_rng(1)
    own = {id(weight) for weight in layer.positions.weights}
    for weight in layer.weights:
        deviation = 1.0 if id(weight) in own and "kernel" not in weight.path else D**-0.5
        weight.assign(random.normal(0, deviation, weight.shape))
    return layer


@schemes
def test_equals_the_equations(name):
    layer = attention(SCHEMES[name](), value_dim=5)
    expected = position_oracle.attend(layer, X)
    assert_close(layer(X, X, return_attention_scores=True), expected)
    expected = position_oracle.attend(layer, X, MASK)
    how = dict(value_mask=PADDING, use_causal_mask=True, return_attention_scores=True)
    assert_close(layer(X, X, **how), expected)


@pytest.mark.parametrize("policy", list(TOLERANCES)[1:])
@schemes
def test_half_precision(name, policy):
    layer = attention(SCHEMES[name](), policy)
    output = layer(X, X)
    assert output.dtype == policy.removeprefix("mixed_")
    assert_close(output, position_oracle.attend(layer, X)[0], 2 * TOLERANCES[policy])


def removed(positions, monkeypatch):
    for name in ("rotate", "add_scores", "add_values"):
        monkeypatch.setattr(positions, name, getattr(Positions(), name))


def sign_flipped(positions, monkeypatch):
    if isinstance(positions, kt.RotaryPositions):
        monkeypatch.setattr(positions, "quarter_turn", -positions.quarter_turn)
    monkeypatch.setattr(positions_module, "distances", lambda *a: -distances(*a))


def shifted_by_one(positions, monkeypatch):
    look_up, rotate, starts = positions.look_up, positions.rotate, iter((1, 0))

    def shifted(at):
        at.start = 1
        return look_up(at)

    def rotate_queries_only(heads, at):
        at.start = next(starts)  # queries, then keys
        return rotate(heads, at)

    monkeypatch.setattr(positions, "look_up", shifted)
    monkeypatch.setattr(positions, "rotate", rotate_queries_only)


@pytest.mark.parametrize("mutate", [removed, sign_flipped, shifted_by_one])
@schemes
def test_a_wrong_scheme_would_be_found(name, mutate, monkeypatch):
    layer = attention(SCHEMES[name]())
    expected = position_oracle.attend(layer, X)
    mutate(layer.positions, monkeypatch)
    for actual, right in zip(layer(X, X, return_attention_scores=True), expected, strict=True):
        assert np.abs(actual - right).max() > 0.02


@schemes
def test_a_pass_over_some_queries(name):
    """Queries that begin later, one or several of them, and lengths that only the graph knows."""
    layer = attention(SCHEMES[name]())
    positions = layer.positions
    heads = [dense(X) for dense in (layer.query_dense, layer.key_dense, layer.value_dense)]
    whole = PositionBias(positions, 9, 9)
    rotated = [*(positions.rotate(x, whole) for x in heads[:2]), heads[2]]
    expected, _ = layer.attend(*rotated, position_bias=whole)

    some = tf.TensorSpec([2, None, H, K])

    @tf.function(input_signature=[some, some, some, tf.TensorSpec([], "int32")])
    def attend(query, key, value, start):
        bias = PositionBias(positions, tf.shape(query)[1], tf.shape(key)[1], start)
        query = positions.rotate(query, bias)
        return layer.attend(query, key, value, position_bias=bias)[0]

    keys = rotated[1], rotated[2]
    for start in (0, 4, 8):
        assert_close(attend(heads[0][:, start:], *keys, start), expected[:, start:])
        for tables in (None, positions.make_tables(loop=True)):
            bias = PositionBias(positions, 1, 9, tf.constant(start), tables)
            query = positions.rotate(heads[0][:, start : start + 1], bias)
            output, _ = layer.attend(query, *keys, position_bias=bias)
            assert_close(output, expected[:, start : start + 1])


@schemes
def test_gradients(name):
    """By the rules of TensorFlow and, for every weight at once, by a difference."""
    layer = attention(SCHEMES[name]())
    direction = [normal(*weight.shape, seed=i) for i, weight in enumerate(layer.weights)]
    target = normal(2, 9, D, seed=5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(X, X) * target)
    found = tape.gradient(loss, layer.trainable_variables)
    found = [np.array(tf.convert_to_tensor(gradient)) for gradient in found]
    slope = sum(np.sum(of * way) for of, way in zip(found, direction, strict=True))
    losses = []
    for step in (1e-3, -1e-3):
        for weight, way in zip(layer.weights, direction, strict=True):
            weight.assign(weight + step * way)
        losses.append(np.sum(position_oracle.attend(layer, X)[0] * target))
        for weight, way in zip(layer.weights, direction, strict=True):
            weight.assign(weight - step * way)
    assert slope == pytest.approx((losses[0] - losses[1]) / 2e-3, rel=5e-3)


# What does not go together.


class KerasAttention(kt.EncoderLayer):
    def make_attention(self):
        return keras.layers.MultiHeadAttention(2, 4)


class ToldOfTheMemory(kt.DecoderLayer):
    def make_attention(self):
        return kt.MultiHeadAttention(2, 4, positions="rotary")


MISTAKES = {
    "scheme": (lambda: kt.MultiHeadAttention(2, 4, positions="rope"), "one of sinusoidal, learned"),
    "no name": (lambda: kt.Encoder(1, 8, 2, 16, positions=3), "one of sinusoidal, .* received 3"),
    "embedding": (lambda: kt.PositionalEmbedding(9, 8, "rope"), "one of sinusoidal, learned"),
    "odd heads": (
        lambda: kt.Decoder(1, 6, 2, 16, positions="rotary").build((1, 2, 6), (1, 2, 6)),
        "key_dim must be even for rotary positions, received 3",
    ),
    "no distance": (lambda: kt.RelativePositions(0), "positive integer, received 0"),
    "half a distance": (lambda: kt.DisentangledPositions(1.5), "positive integer, received 1.5"),
    "distance of none": (
        lambda: kt.Encoder(1, 8, 2, 16, positions="rotary", max_distance=4),
        "positions='rotary': leave out max_distance=4",
    ),
    "distance of an object": (
        lambda: kt.MultiHeadAttention(2, 4, positions=kt.RelativePositions(3), max_distance=4),
        "max_distance=4 needs positions given by name",
    ),
    "three buckets": (
        lambda: kt.BucketedPositions(3),
        "a whole number of buckets, .*num_buckets=3",
    ),
    "one bucket": (
        lambda: kt.BucketedPositions(1, bidirectional=False),
        "at least 2 .* num_buckets=1",
    ),
    "buckets of one each": (
        lambda: kt.BucketedPositions(32, 8),
        "below 2·max_distance: received num_buckets=32, max_distance=8",
    ),
    "Keras' attention": (
        lambda: KerasAttention(8, 2, 16, positions="relative").build((1, 3, 8)),
        "MultiHeadAttention does not accept positions",
    ),
    "of the memory": (
        lambda: ToldOfTheMemory(8, 2, 16).build((1, 3, 8), (1, 3, 8)),
        "Cross-attention takes no positions",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    make, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        make()


# Other implementations.


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_equal_keras_hub(bidirectional):
    from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention

    distance = np.arange(-300, 301)
    bucket = T5MultiHeadAttention._relative_position_bucket
    expected = bucket(distance, bidirectional, num_buckets=32, max_distance=128)
    found = buckets(32, 128, bidirectional)[np.clip(distance, -128, 128) + 128]
    np.testing.assert_array_equal(found, expected)


def rotation(width, policy="float32"):
    positions = kt.RotaryPositions()
    positions.prepare(1, width, width, width, policy=keras.DTypePolicy(policy))
    return positions


def test_rotation_equals_keras_hub():
    """Theirs pairs entries half a head apart: the same with the columns in another order."""
    heads = normal(2, 500, 3, 16)
    halves = np.concatenate([np.arange(0, 16, 2), np.arange(1, 16, 2)])
    theirs = keras_nlp.layers.RotaryEmbedding()(heads[..., halves])
    positions = rotation(16)
    ours = positions.rotate(heads, PositionBias(positions, 500, 500))
    assert_close(np.array(ours)[..., halves], theirs, 1e-4)  # theirs rounds angles as they come


def test_rotation_is_exact_at_any_position():
    """Angles are float32 in every precision, and as exact far away as near."""
    positions = rotation(4, "mixed_bfloat16")
    at = PositionBias(positions, 3, 3, 9_998)
    heads = normal(1, 3, 1, 4)
    turns = (np.arange(9_998, 10_001)[:, None] / [1, 100]).astype("float64")
    points = heads[0, :, 0, 0::2] + 1j * heads[0, :, 0, 1::2]
    expected = points * np.exp(1j * turns)
    expected = np.stack([expected.real, expected.imag], -1).reshape(1, 3, 1, 4)
    assert_close(positions.rotate(heads, at), expected)
    assert positions.rotate(tf.cast(heads, "bfloat16"), at).dtype == "bfloat16"


@keras.saving.register_keras_serializable(package="tests")
class HalvedRelative(kt.RelativePositions):
    """A scheme of one's own."""

    def add_values(self, output, weights, at):
        return output


@pytest.mark.parametrize("scheme", [kt.RelativePositions, kt.DisentangledPositions])
def test_a_frozen_scheme_stays_frozen_in_a_stack(scheme):
    encoder = kt.Encoder(2, D, 2, 16, positions=scheme(3, trainable=False))
    encoder(X)
    own = [x.self_attention.positions for x in encoder.layers]
    assert own[0] is not own[1] and not any(x.trainable_variables for x in own)


def test_a_scheme_of_ones_own_keeps_its_class_in_a_stack():
    encoder = kt.Encoder(2, D, 2, 16, positions=HalvedRelative(3))
    encoder(X)
    assert {type(x.self_attention.positions) for x in encoder.layers} == {HalvedRelative}
