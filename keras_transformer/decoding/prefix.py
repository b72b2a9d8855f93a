"""What rows begin with: given tokens, which are passed through the model at once.

Shapes: B batch, P tokens of the prefix, V vocabulary.
"""

import functools
import math
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.logits_processors import NEVER
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.utils import Nested, State, Step, Tensor

MAX_POSITIONS = 1024  # of all rows together that are computed at once, as each has V logits


class Prefix:
    """The ids `(B, P)` that rows begin with, padded with PAD: any id may follow."""

    def __init__(self, ids: Tensor) -> None:
        self._given = tf.get_static_value(ids)
        self.ids = tf.cast(ids, tf.int32)

    def required(self, position: int | Tensor, vocabulary_size: int | None) -> Tensor:
        """Returns the ids at a position `(B,)`, PAD if any may follow."""
        known, size = self._given, vocabulary_size or math.inf
        if known is not None and known.size and not 0 <= known.min() <= known.max() < size:
            raise ValueError(
                f"The prefix holds ids from {known.min()} to {known.max()}, but the vocabulary has "
                f"ids from 0 to {size - 1}."
            )
        width = tf.shape(self.ids)[1]
        ids = tf.pad(self.ids, [[0, 0], [0, 1]], constant_values=PAD)  # read past the end
        return tf.gather(ids, tf.minimum(position, width), axis=1)


class Beginning(NamedTuple):
    """The state of a search after the first tokens."""

    last: tf.Tensor  # int32 (B,), the latest token
    tokens: tf.Tensor  # int32 (B, t)
    log_prob: tf.Tensor  # float32 (B,), -inf if one of them has probability 0
    state: State


def begin(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    prefix: Prefix | None,
    fixed_shapes: bool,
) -> Beginning:
    """Passes the tokens that all rows begin with through the model, several positions at once.

    With fixed shapes there are none: the search passes them one by one.
    """
    log_prob = tf.zeros([batch_size], tf.float32)
    if prefix is None or fixed_shapes or not takes_several(step):
        nothing = tf.fill([batch_size, 0], PAD)
        return Beginning(tf.fill([batch_size], START), nothing, log_prob, state)
    ids = prefix.ids
    ends = tf.reduce_any(tf.equal(ids, PAD) | tf.equal(ids, END), axis=0)
    count = tf.math.count_nonzero(tf.equal(tf.cumsum(tf.cast(ends, tf.int32)), 0), dtype=tf.int32)
    count = tf.minimum(count, max_length)
    inputs = tf.pad(ids, [[0, 0], [1, 0]], constant_values=START)
    length = tf.maximum(MAX_POSITIONS // tf.maximum(tf.shape(ids)[0], 1), 1)

    def advance(position, log_prob, state):
        end = tf.minimum(position + length, count)
        logits, state = step(inputs[:, position:end], position, state)
        prefix.required(position, logits.shape[-1])  # raises for invalid ids
        logits = tf.cast(logits, tf.float32)
        chosen = tf.gather(logits, ids[:, position:end], batch_dims=2)
        gains = chosen - tf.reduce_logsumexp(logits, axis=-1)
        gains = tf.where(tf.equal(chosen, NEVER), NEVER, gains)
        return end, log_prob + tf.reduce_sum(gains, axis=1), state

    position, log_prob, state = tf.while_loop(
        lambda position, *_: position < count,
        advance,
        (tf.constant(0), log_prob, state),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), growing_shapes(state)),
    )
    return Beginning(inputs[:, position], ids[:, :position], log_prob, state)


def takes_several(step: Step) -> bool:
    """Returns whether a step function takes the ids of several positions, too."""
    return getattr(step, "takes_several", False)


def growing_shapes(tensors: Nested) -> Nested:
    """Shapes of tensors `(B, …)` in a loop: the batch may shrink, and an axis of size 0 grows."""
    return tf.nest.map_structure(
        lambda x: tf.TensorShape([None, *(size or None for size in x.shape[1:])]), tensors
    )


def begin_with(step: Step, state: State, tokens: Tensor) -> tuple[Step, State]:
    """Returns a step and a state with which every row begins with a given token.

    The `tokens`, int32 `(B,)`, have the probability 1; those that follow depend on them.
    """

    def step_after(ids, position, state):
        inner, tokens = state
        logits, inner = step(ids, position, inner)
        least = tf.cast(NEVER, logits.dtype)
        only = functools.partial(tf.one_hot, tokens, logits.shape[-1], 0, least, dtype=logits.dtype)
        if logits.shape.rank == 3:
            is_first = tf.equal(tf.range(tf.shape(ids)[1]) + position, 0)[:, tf.newaxis]
            return tf.where(is_first, only()[:, tf.newaxis], logits), (inner, tokens)
        return tf.switch_case(tf.minimum(position, 1), [only, lambda: logits]), (inner, tokens)

    if takes_several(step):
        step_after.takes_several = True  # type: ignore[attr-defined]
    return step_after, (state, tokens)
