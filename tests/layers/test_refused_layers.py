"""What does not fit is refused by a sentence that names it."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_transformer as kt
from tests.support.layer_harness import MEMORY, SOURCE, TARGET, X_MASK, B, X, build, normal


class KerasAttention(kt.EncoderLayer):
    def make_attention(self):
        return keras.layers.MultiHeadAttention(2, 4)


class ToldOfTheMemory(kt.DecoderLayer):
    def make_attention(self):
        return kt.MultiHeadAttention(2, 4, positions="rotary")


def mask(*shape):
    return np.ones(shape, bool)


def embed(ids=TARGET, **options):
    return kt.PositionalEmbedding(SOURCE.max() + 1, 8)(ids, **options)


def attend(*args, num_heads=2, positions=None, max_distance=None, **kwargs):
    layer = kt.MultiHeadAttention(num_heads, 2, positions=positions, max_distance=max_distance)
    return layer(*args, **kwargs)


FREQUENCIES = {"frequencies": "fourier"}
HEADS = X[:, :, None], MEMORY[:, :, None]
OF_MASK = r"mask has shape .* does not broadcast"
ADDED = -1e9 * (TARGET == 0)


def test_mistakes():
    for mistake, message in (
        # As many heads as keys: a mask without a batch would broadcast.
        (lambda: attend(X, X, num_heads=4, value_mask=ADDED), r"received floats such as -1e\+09"),
        (lambda: attend(X, X, value_mask=np.full((3, 4), 0.5)), "received floats such as 0.5"),
        (lambda: attend(X, X, value_mask=keras.Input((4,))), "received floats: pass ops.cast"),
        (lambda: attend(X, X, num_heads=4, value_mask=mask(4)), r"length\), received \(4,\)"),
        (lambda: attend(X, MEMORY, attention_mask=mask(2, 4, 6)), OF_MASK),
        (lambda: kt.dot_product_attention(*HEADS, HEADS[1], mask=mask(3, 1, 6, 4)), OF_MASK),
        (lambda: attend(X, MEMORY, normal(B, 5, 12)), "key and value must be equal, received 5, 6"),
        (lambda: attend(X[:1], MEMORY), "numbers of rows must be equal, received 1, 3, 3"),
        (lambda: build("Encoder")(MEMORY, mask(3, 5)), OF_MASK),
        (lambda: build("EncoderLayer")(MEMORY, mask(6, 6)), OF_MASK),
        (lambda: build("Decoder")(X, MEMORY, memory_mask=X_MASK), OF_MASK),
        (lambda: build("Decoder")(X), "has cross-attention but received no memory"),
        (lambda: kt.DecoderLayer(8, 2, 16, cross_attention=False)(X, MEMORY), "received a memory"),
        (lambda: build("Decoder alone").initial_state(), "batch_size or memory"),
        (lambda: kt.Decoder(2, 8, 3, 16), "num_heads=3 .* d_model=8"),
        (lambda: kt.EncoderLayer(8, 2, 16, norm="mid"), "norm must be .* received 'mid'"),
        (lambda: embed(np.array([3, 4])), r"have shape .* received \(2,\)"),
        (lambda: embed(start=np.array([0, 5])), "start must be a scalar, rec"),
        (lambda: kt.sinusoidal_encoding(3, 7), "need an even d_model, received 7"),
        (lambda: kt.sinusoidal_encoding(3, 8, **FREQUENCIES), "one of transformer, .* 'fourier'"),
        (lambda: kt.PositionalEmbedding(9, 8, "rope"), "one of sinusoidal, .*'rope'"),
        (lambda: attend(positions="rope"), "one of sinusoidal, learned"),
        (lambda: attend(positions=kt.RelativePositions(3), max_distance=4), "given by name"),
        (
            lambda: kt.Decoder(1, 6, 2, 16, positions="rotary").build((1, 2, 6), (1, 2, 6)),
            "key_dim must be even for rotary positions, received 3",
        ),
        (lambda: kt.Encoder(1, 8, 2, 16, positions="rotary", max_distance=4), "leave out max_dist"),
        (lambda: kt.BucketedPositions(3), "a whole number of .*num_buckets=3"),
        (lambda: kt.BucketedPositions(32, 8), "num_buckets=32, max_distance=8"),
        (lambda: KerasAttention(8, 2, 16, positions="relative")(X), "does not accept positions"),
        (lambda: ToldOfTheMemory(8, 2, 16)(X, MEMORY), "Cross-attention takes no positions"),
    ):
        with pytest.raises(ValueError, match=message):
            mistake()


SIZES = [  # of layers: how they are made with one size, and its name
    (lambda x: kt.MultiHeadAttention(2, x), "key_dim"),
    (lambda x: kt.MultiHeadAttention(2, 4, value_dim=x), "value_dim"),
    (lambda x: kt.DecoderLayer(8, 2, x), "d_ff"),
    (lambda x: kt.EncoderLayer(8, 2, 16, depth=x), "depth"),
    (lambda x: kt.Decoder(x, 8, 2, 16), "num_layers"),
    (lambda x: kt.PositionalEmbedding(x, 8), "vocabulary_size"),
    (lambda x: kt.RelativePositions(x), "max_distance"),
]


@given(st.sampled_from(SIZES), st.integers(max_value=0) | st.floats() | st.text())
def test_sizes_are_positive_integers(size, value):
    make, name = size
    with pytest.raises(ValueError) as raised:
        make(value)
    assert f"{name} must be a positive integer, received {value!r}" in str(raised.value)
