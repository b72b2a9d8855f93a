"""Scores of given pairs of ids: the probability of a target, and what it attends to.

Shapes: B batch, S source length, T target length, N layers, H heads, K ranked tokens, V target
vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START
from keras_transformer.utils import Tensor

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer


def log_prob(model: "Transformer", source: Tensor, target: Tensor) -> Tensor:
    """The log-probability of targets, by one pass over them.

    Args:
        model: A `Transformer`.
        source: int32 ids `(B, S)`, padded.
        target: int32 ids `(B, T)`, each with END at its end, then padded.

    Returns:
        float32 `(B,)`: the sum of the tokens' natural-log probabilities, END included.
    """
    logits = model.suppress(model((source, _shift(target))))
    gains = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    return tf.reduce_sum(tf.where(tf.equal(target, PAD), 0.0, gains), axis=-1)


def all_attention(
    model: "Transformer", source: Tensor, target: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes the attention weights of all layers and heads, by one pass.

    Args:
        model, source, target: See `log_prob`.

    Returns:
        float32 logits `(B, T, V)`, which predict each token of the target; and the weights,
        float32: `encoder` `(B, N, H, S, S)`, `decoder` `(B, N, H, T, T)` of its input, START and
        all but the last token, and `cross` `(B, N, H, T, S)`. Rows are queries. Values at padding
        are meaningless.
    """
    logits, scores = model((source, _shift(target)), return_attention_scores=True)
    stacks = {kind: tf.stack(layers, axis=1) for kind, layers in scores.items()}
    weights = {kind: tf.cast(stack, tf.float32) for kind, stack in stacks.items()}
    return model.suppress(logits), weights


def rank_tokens(
    logits: Tensor, target: Tensor, number: int | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the most probable tokens at each position of targets.

    Args:
        logits: float32 `(B, T, V)`.
        target: int32 ids `(B, T)`.
        number: K, how many tokens.

    Returns:
        float32 `(B, T)`, the natural-log probabilities of the target's tokens; and the K most
        probable ones, the best first: int32 ids and float32 log-probabilities `(B, T, K)`.
    """
    log_probs = tf.nn.log_softmax(logits)
    best, ids = tf.math.top_k(log_probs, number)
    return tf.gather(log_probs, target, batch_dims=2), ids, best


def attention_to_source(
    model: "Transformer",
    source: Tensor,
    target: Tensor,
    layers: Sequence[int],
    heads: Sequence[int],
) -> Tensor:
    """Computes the cross-attention of target tokens while they are predicted.

    Args:
        model, source, target: See `log_prob`.
        layers, heads: Numbers of the decoder layers and of their heads, from 0, whose
            cross-attention is averaged.

    Returns:
        float32 `(B, T, S)`.
    """
    _, scores = model((source, _shift(target)), return_attention_scores=True)
    chosen = tf.gather(tf.stack([scores["cross"][layer] for layer in layers]), heads, axis=2)
    return tf.reduce_mean(tf.cast(chosen, tf.float32), axis=[0, 2])


def most_attended(
    model: "Transformer",
    source: Tensor,
    target: Tensor,
    layers: Sequence[int],
    heads: Sequence[int],
) -> Tensor:
    """The source position that each target token attends to most.

    END is excluded with the padding: heads attend to it when a token has no counterpart.

    Args:
        model, source, target, layers, heads: See `attention_to_source`.

    Returns:
        int32 `(B, T)`. Values at END, at padding, and in rows without a source token are
        meaningless.
    """
    mean = attention_to_source(model, source, target, layers, heads)
    readable = tf.not_equal(source, PAD) & tf.not_equal(source, END)
    mean = tf.where(readable[:, tf.newaxis], mean, -1.0)
    return tf.argmax(mean, axis=-1, output_type=tf.int32)


def _shift(target):
    """The decoder's input: START, then all but the last token of the target."""
    # Sliced last: without rows, a target may have no column to remove.
    return tf.pad(target, [[0, 0], [1, 0]], constant_values=START)[:, : tf.shape(target)[1]]
