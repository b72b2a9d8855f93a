"""A user's mistake gets a ValueError that says what came and what was expected."""

import functools
import re

import numpy as np
import pytest

import keras_transformer as kt
from tests.support import layer_harness
from tests.support.layer_harness import MEMORY, SOURCE, TARGET, X, build


def mask(*shape):
    return np.ones(shape, bool)


def transformer(**kwargs):
    return layer_harness.transformer(**kwargs)


@functools.cache
def shared(name, norm="post", policy="float32"):
    return build(name, norm, policy)


def run(name, *arrays, **kwargs):
    return shared(name)(*arrays, **kwargs)


OF_MASK = r"mask has shape .* does not broadcast"
CONSTRUCTION = {
    "heads do not divide": (lambda: kt.Decoder(2, 8, 3, 16), "num_heads=3 .* d_model=8"),
    "no depth": (lambda: kt.EncoderLayer(8, 2, 16, depth=0), "depth must be .*, received 0"),
    "no head": (lambda: kt.DecoderLayer(8, 0, 16), "num_heads must be .*, received 0"),
    "no head in attention": (lambda: kt.MultiHeadAttention(0, 4), "num_heads must .*, received 0"),
    "key_dim": (lambda: kt.MultiHeadAttention(2, -4), "key_dim must be a positive integer"),
    "value_dim": (lambda: kt.MultiHeadAttention(2, 4, value_dim=0), "value_dim must .* received 0"),
    "attention dropout": (lambda: kt.MultiHeadAttention(2, 4, dropout=1.0), "dropout must be"),
    "d_ff": (lambda: kt.FeedForward(8, 0), "positive integer"),
    "d_model of feed-forward": (lambda: kt.FeedForward(-8, 16), "positive integer"),
    "d_model not an integer": (
        lambda: kt.Encoder(2, 8.0, 2, 16),
        "d_model must be .* received 8.0",
    ),
    "vocabulary of the model": (lambda: kt.Transformer(None, 30), "vocabulary_size must be"),
    "no vocabulary": (lambda: kt.PositionalEmbedding(0, 8), "vocabulary_size must .* received 0"),
    "no width": (lambda: kt.PositionalEmbedding(9, 0), "d_model must be a positive integer"),
    "activation": (lambda: kt.FeedForward(8, 16, activation="rellu"), "rellu"),
    "dropout": (lambda: kt.EncoderLayer(8, 2, 16, dropout=1.5), r"1\.5"),
    "no layers": (lambda: kt.Encoder(0, 8, 2, 16), "num_layers must be .* received 0"),
    "norm": (lambda: kt.EncoderLayer(8, 2, 16, norm="mid"), "norm must be .* received 'mid'"),
    "positions": (
        lambda: kt.PositionalEmbedding(9, 8, positions="rope"),
        "positions must .*'rope'",
    ),
    "no length": (lambda: transformer(max_length=0), "max_length must be .* received 0"),
    "learned without length": (
        lambda: kt.PositionalEmbedding(9, 8, positions="learned"),
        "requires max_length",
    ),
    "odd width": (lambda: kt.PositionalEmbedding(9, 7), "d_model must be even .* received 7"),
    "odd width of the function": (lambda: kt.sinusoidal_encoding(3, 7), "need an even d_model"),
    "sharing": (lambda: transformer(share_embeddings="both"), "share_embeddings must .* 'both'"),
    "sharing two vocabularies": (
        lambda: kt.Transformer(9, 10, share_embeddings="all"),
        "received 9 source and 10 target ids",
    ),
}
CALLS = {
    "attention mask of another batch": (
        lambda: run("MultiHeadAttention", X, MEMORY, attention_mask=mask(2, 4, 6)),
        OF_MASK,
    ),
    "mask of the function": (
        lambda: kt.dot_product_attention(
            X[:, :, None], MEMORY[:, :, None], MEMORY[:, :, None], mask=mask(3, 1, 6, 4)
        ),
        OF_MASK,
    ),
    "rank of attention's input": (
        lambda: run("MultiHeadAttention", X[:, None], MEMORY[:, None]),
        "expected ndim=3, found ndim=4",
    ),
    "encoder mask": (
        lambda: run("Encoder", MEMORY, mask(3, 5)),
        OF_MASK,
    ),
    "encoder mask of queries and keys without a batch": (
        lambda: run("EncoderLayer", MEMORY, mask(6, 6)),
        OF_MASK,
    ),
    "decoder memory_mask": (
        lambda: run("DecoderLayer", X, MEMORY, memory_mask=mask(3, 4)),
        OF_MASK,
    ),
    "decoder width": (lambda: run("Decoder", X[..., :6], MEMORY), "to have value 8"),
    "id too large": (
        lambda: run("PositionalEmbedding", np.array([[3, 11]])),
        "Ids must be integers in 0 … 10, received 11",
    ),
    "negative id": (
        lambda: run("PositionalEmbedding", np.array([[3, -1]])),
        "Ids must be integers in 0 … 10, received -1",
    ),
    "ids of rank 1": (
        lambda: run("PositionalEmbedding", np.array([3, 4])),
        r"Ids must have shape .* received \(2,\)",
    ),
    "too many learned positions": (
        lambda: run("PositionalEmbedding learned", np.ones((1, 10), int)),
        "9 learned positions",
    ),
    "learned positions from a start": (
        lambda: run("PositionalEmbedding learned", np.ones((1, 2), int), start=8),
        "9 learned positions",
    ),
    "two rows instead of two tensors": (
        lambda: run("Transformer", SOURCE[:2]),
        "must be a pair .* received one tensor",
    ),
    "three tensors": (
        lambda: run("Transformer", (SOURCE, TARGET, TARGET)),
        "must be a pair .* received 3 tensors",
    ),
    "one source for several targets": (
        lambda: run("Transformer", (SOURCE[:1], TARGET)),
        "rows of target, memory and source must be equal, received 3, 1, 1",
    ),
    "memory of other sentences": (
        lambda: build("Transformer").decode(TARGET, np.ones((1, 6, 8), "float32"), SOURCE),
        "rows of target, memory and source must be equal, received 3, 1, 3",
    ),
    "source of other sentences": (
        lambda: build("Transformer").decode(TARGET, MEMORY, SOURCE[:1]),
        "rows of target, memory and source must be equal, received 3, 3, 1",
    ),
    "source of another length": (
        lambda: build("Transformer").decode(TARGET, MEMORY, SOURCE[:, :1]),
        "lengths of memory and source must be equal, received 6, 1",
    ),
    "mask of keys without a batch": (
        # As many keys as heads: the mask would broadcast.
        lambda: kt.MultiHeadAttention(4, 2)(X, X, value_mask=mask(4)),
        r"must have shape \(batch, length\), received \(4,\)",
    ),
    "ids that are no integers": (
        lambda: run("PositionalEmbedding", np.array([[3, 5.7]])),
        "Ids must be integers in 0 … 10, received 5.7",
    ),
    "additive mask": (
        lambda: run("MultiHeadAttention", X, MEMORY, attention_mask=-1e9 * (MEMORY[:, :1, 0] > 0)),
        r"received floats such as -1e\+09",
    ),
    "floats for a mask of the function": (
        lambda: kt.dot_product_attention(X[:, None], X[:, None], X[:, None], mask=np.full(1, 0.5)),
        "received floats such as 0.5",
    ),
    "keys without values": (
        lambda: kt.dot_product_attention(
            X[:, :, None], MEMORY[:, :, None], MEMORY[:, :5, None], mask=mask(1)
        ),
        "lengths of key and value must be equal, received 6, 5",
    ),
    "queries of other rows": (
        lambda: run("MultiHeadAttention", X[:1], MEMORY),
        "numbers of rows must be equal, received 1, 3, 3",
    ),
    "no memory": (lambda: run("Decoder", X), "has cross-attention but received no memory"),
    "memory without cross-attention": (
        lambda: kt.Decoder(1, 8, 2, 16, cross_attention=False)(X, memory=MEMORY),
        "has no cross-attention but received a memory",
    ),
    "memory in the mask's place": (
        lambda: kt.DecoderLayer(8, 2, 16, cross_attention=False)(X, MEMORY),
        "has no cross-attention but received a memory",
    ),
    "a state without a memory": (
        lambda: kt.Decoder(1, 8, 2, 16).initial_state(2),
        r"has cross-attention but received no memory",
    ),
    "a state of no batch": (
        lambda: kt.Decoder(1, 8, 2, 16, cross_attention=False).initial_state(),
        "needs batch_size or memory",
    ),
    "logits of another width": (
        lambda: build("PositionalEmbedding").logits(X[..., :6]),
        r"d_model=8\), received shape \(3, 4, 6\)",
    ),
}


MISTAKES = CONSTRUCTION | CALLS


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(mistake, message):
    with pytest.raises(ValueError, match=message):
        mistake()


def test_learned_positions_reach_their_last():
    ids = np.ones((1, 2), int)
    assert run("PositionalEmbedding learned", ids, start=7).shape == (1, 2, 8)


def test_unknown_name():
    with pytest.raises(AttributeError, match=re.escape("no attribute 'Transfromer'")):
        kt.Transfromer  # noqa: B018
