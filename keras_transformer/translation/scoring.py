"""Scores of given pairs: the probability of a target, and what it attends to.

Shapes: B batch, S source length, T target length, N layers, H heads, K ranked tokens, V target
vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START
from keras_transformer.typing import Tensor

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer


def log_prob(model: "Transformer", source: Tensor, target: Tensor) -> Tensor:
    """The log-probability of targets, by one pass over them.

    Args:
        model: A `Transformer`.
        source: int32 ids `(B, S)`, padded.
        target: int32 ids `(B, T)`, each closed by END, then padded.

    Returns:
        float32 `(B,)`: the sum of the tokens' natural-log probabilities, END included.
    """
    logits = model((source, _shift(target)))
    gains = tf.gather(logits, target, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)
    return tf.reduce_sum(tf.where(tf.equal(target, PAD), 0.0, gains), axis=-1)


def all_attention(
    model: "Transformer", source: Tensor, target: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes what targets and sources attend to, in all layers and heads, by one pass.

    Args:
        model, source, target: As `log_prob` has them.

    Returns:
        float32 logits `(B, T, V)`, from which each token of the target is predicted; and the
        weights, float32: `encoder` `(B, N, H, S, S)`, `decoder` `(B, N, H, T, T)` of what it reads,
        START and all but the last token, and `cross` `(B, N, H, T, S)`. Rows are queries. What
        stands at padding means nothing.
    """
    logits, scores = model((source, _shift(target)), return_attention_scores=True)
    stacks = {kind: tf.stack(layers, axis=1) for kind, layers in scores.items()}
    return logits, {kind: tf.cast(weights, tf.float32) for kind, weights in stacks.items()}


def rank_tokens(
    logits: Tensor, target: Tensor, number: int | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Ranks what the model would rather have written at each place of targets.

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
    """Computes what target tokens attend to while they are predicted.

    Args:
        model, source, target: As `log_prob` has them.
        layers, heads: Numbers of the decoder layers and of their heads, from 0, over which the
            attention to the source is averaged.

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

    END is left out with the padding: heads rest on it where a token has no counterpart.

    Args:
        model, source, target, layers, heads: As `attention_to_source` has them.

    Returns:
        int32 `(B, T)`. What stands at END, at padding, and in rows without a source token, means
        nothing.
    """
    mean = attention_to_source(model, source, target, layers, heads)
    readable = tf.not_equal(source, PAD) & tf.not_equal(source, END)
    mean = tf.where(readable[:, tf.newaxis], mean, -1.0)
    return tf.argmax(mean, axis=-1, output_type=tf.int32)


def _shift(target):
    """Shifts the target: START, then all but the last token, which is what the decoder is fed."""
    # Cut last: without rows, a target may have no column to take off.
    return tf.pad(target, [[0, 0], [1, 0]], constant_values=START)[:, : tf.shape(target)[1]]
