"""What does not fit is refused by a sentence that names it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.layer_harness import MEMORY, SOURCE, TARGET, B, X, build, normal


class KerasAttention(kt.EncoderLayer):
    def make_attention(self):
        return keras.layers.MultiHeadAttention(2, 4)


class ToldOfTheMemory(kt.DecoderLayer):
    def make_attention(self):
        return kt.MultiHeadAttention(2, 4, positions="rotary")


def embed(ids=TARGET, **options):
    return kt.PositionalEmbedding(SOURCE.max() + 1, 8)(ids, **options)


def attend(*args, num_heads=2, positions=None, max_distance=None, **kwargs):
    layer = kt.MultiHeadAttention(num_heads, 2, positions=positions, max_distance=max_distance)
    return layer(*args, **kwargs)


def test_mistakes():
    for mistake, message in (
        (lambda: embed(tf.ragged.constant([[1], [2, 3]])), "received a ragged one: call its to_te"),
        (lambda: attend(X, X, value_mask=-1e9 * (TARGET == 0)), r"floats such as -1e\+09"),
        (lambda: attend(X, X, value_mask=keras.Input((4,))), "received floats: pass ops.cast"),
        # As many heads as keys: a mask without a batch would broadcast.
        (lambda: attend(X, X, num_heads=4, value_mask=TARGET[0] != 0), r"length\), rec.* \(4,\)"),
        (lambda: attend(X, X, attention_mask=np.ones((2, 4, 4))), "mask has .* does not broadcast"),
        (lambda: attend(X, MEMORY, normal(B, 5, 12)), "key and value must be equal, received 5, 6"),
        (lambda: attend(X[:1], MEMORY), "numbers of rows must be equal, received 1, 3, 3"),
        (lambda: build("Decoder")(X), "has cross-attention but received no memory"),
        (lambda: kt.DecoderLayer(8, 2, 16, cross_attention=False)(X, MEMORY), "received a memory"),
        (lambda: build("Decoder alone").initial_state(), "batch_size or memory"),
        (lambda: kt.MultiHeadAttention(2, 0), "key_dim must be a positive integer, received 0"),
        (lambda: kt.MultiHeadAttention(2, 4, value_dim=-1), "value_dim must be a positive integer"),
        (lambda: kt.DecoderLayer(8, 2, 2.5), "d_ff must be a positive integer, received 2.5"),
        (lambda: kt.EncoderLayer(8, 2, 16, depth="3"), "depth must be a positive integer, .* '3'"),
        (lambda: kt.Decoder(np.nan, 8, 2, 16), "num_layers must be a positive integer, rec.* nan"),
        (lambda: kt.PositionalEmbedding(0, 8), "vocabulary_size must be a positive integer"),
        (lambda: kt.RelativePositions(0), "max_distance must be a positive integer"),
        (lambda: kt.Decoder(2, 8, 3, 16), "num_heads=3 .* d_model=8"),
        (lambda: kt.EncoderLayer(8, 2, 16, norm="mid"), "norm must be .* received 'mid'"),
        (lambda: embed(np.array([3, 4])), r"have shape .* received \(2,\)"),
        (lambda: embed(start=np.array([0, 5])), "start must be a scalar, rec"),
        (lambda: kt.sinusoidal_encoding(3, 7), "need an even d_model, received 7"),
        (lambda: kt.sinusoidal_encoding(3, 8, frequencies="fourier"), "transformer, .* 'fourier'"),
        (lambda: kt.PositionalEmbedding(9, 8, "rope"), "one of sinusoidal, .*'rope'"),
        (lambda: attend(positions=kt.RelativePositions(3), max_distance=4), "given by name"),
        (lambda: kt.MultiHeadAttention(2, 3, positions="rotary")(X, X), "be even .* received 3"),
        (lambda: kt.Encoder(1, 8, 2, 16, positions="rotary", max_distance=4), "leave out max_dist"),
        (lambda: kt.BucketedPositions(3), "a whole number of .*num_buckets=3"),
        (lambda: kt.BucketedPositions(32, 8), "num_buckets=32, max_distance=8"),
        (lambda: KerasAttention(8, 2, 16, positions="relative")(X), "does not accept positions"),
        (lambda: ToldOfTheMemory(8, 2, 16)(X, MEMORY), "Cross-attention takes no positions"),
    ):
        with pytest.raises(ValueError, match=message):
            mistake()
