"""Decoding one token after the other: what greedy search and sampling share.

Shapes: B batch, A rows of it that are still searched for, P tokens of the prefix, T number of steps
taken, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.arguments import check_arguments, check_ids
from keras_transformer.decoding.shrinking_loop import shrinking_loop
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.typing import SearchOutputs, State, Step, Tensor


class Tokens(NamedTuple):
    """The tokens decoded so far, of the whole batch."""

    last: tf.Tensor  # int32 (B,), the token that the next one follows
    ended: tf.Tensor  # bool (B,)
    tokens: tf.Tensor  # int32 (B, t)
    lengths: tf.Tensor  # int32 (B,)
    log_prob: tf.Tensor  # float32 (B,)


def decode_tokens(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    choose: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    prefix: Tensor | None = None,
    fixed_shapes: bool = False,
) -> SearchOutputs:
    """Adds a token to every row, again and again, until every row has ended.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: As `greedy_search` has them.
        choose: Function from logits, float32 `(A, V)`, position (scalar) and the rows that they
            belong to, int32 `(A,)`, to the ids of the tokens that follow and those of the most
            probable ones, int32 `(A,)` each.

    Returns:
        `tokens`, int32 `(B, T)`, `lengths`, int32 `(B,)`, and `log_prob`, float32 `(B,)`, as
        `greedy_search` has them.

    Raises:
        ValueError: If these do not fit together, as `check_arguments` says.
    """
    check_arguments(state, batch_size, max_length, prefix)
    constraint = prefix_constraint(prefix)

    def running(outputs):
        return tf.logical_not(outputs.ended)

    def advance(position, rows, outputs, state):
        logits, state = step(outputs.last, position, state)
        logits = tf.cast(logits, tf.float32)
        chosen, best = choose(logits, position, rows)
        if constraint:
            demanded = tf.gather(constraint(position, logits.shape[-1]), rows)
            chosen = tf.where(tf.equal(demanded, PAD), chosen, demanded)
        total = logsumexp(logits, best, fixed_shapes)
        gain = tf.gather(logits, chosen, batch_dims=1) - total
        last = tf.where(outputs.ended, PAD, chosen)
        outputs = Tokens(
            last,
            outputs.ended | tf.equal(last, END),
            append(outputs.tokens, last, position if fixed_shapes else None),
            outputs.lengths + tf.cast(running(outputs), tf.int32),
            outputs.log_prob + tf.where(outputs.ended, 0.0, gain),
        )
        return outputs, state

    nothing = Tokens(
        tf.fill([batch_size], START),
        tf.fill([batch_size], False),
        tf.fill([batch_size, max_length if fixed_shapes else 0], PAD),
        tf.zeros([batch_size], tf.int32),
        tf.zeros([batch_size], tf.float32),
    )
    outputs, _ = shrinking_loop(
        running, advance, nothing, state, max_length, fixed_shapes=fixed_shapes
    )
    return outputs.tokens, outputs.lengths, outputs.log_prob


def logsumexp(logits: Tensor, best: Tensor, compiled: bool) -> Tensor:
    """`log Σ exp` of logits `(B, V)`, with as few passes over them as TensorFlow or XLA can do.

    `best`, int32 `(B,)`, are the ids of the largest ones.
    """
    if compiled:
        return tf.reduce_logsumexp(logits, axis=-1)
    # The largest probability is never 0, so this is no log of 0.
    log_prob = tf.math.log(tf.gather(tf.nn.softmax(logits), best, batch_dims=1))
    return tf.gather(logits, best, batch_dims=1) - log_prob


def prefix_constraint(
    prefix: Tensor | None,
) -> Callable[[int | Tensor, int | None], Tensor] | None:
    """Constrains the tokens of a prefix.

    Args:
        prefix: int ids `(B, P)` padded with PAD, or None.

    Returns:
        Function from a position and the size of the vocabulary to int32 ids `(B,)`, PAD where a row
        is free; None for no prefix. It refuses ids that are none.
    """
    if prefix is None:
        return None
    ids = tf.cast(prefix, tf.int32)
    width = tf.shape(ids)[1]
    ids = tf.pad(ids, [[0, 0], [0, 1]], constant_values=PAD)  # what is read past the end

    def demanded(position, vocabulary_size):
        check_ids(prefix, vocabulary_size)
        return tf.gather(ids, tf.minimum(position, width), axis=1)

    return demanded


def append(tokens: Tensor, ids: Tensor, place: int | Tensor | None = None) -> Tensor:
    """Adds `ids` `(...)` to `tokens` `(..., T)`: at its end, or at a place that is there."""
    ids = ids[..., tf.newaxis]
    if place is None:
        return tf.concat([tokens, ids], axis=-1)
    return tf.where(tf.equal(tf.range(tf.shape(tokens)[-1]), place), ids, tokens)
