"""Control of a search: functions that change the logits of each step before a token is chosen.

A function takes logits `(B, V)`, the tokens so far, int32 `(B, t)`, and their number, the position,
a scalar; it returns logits `(B, V)`, -inf for what may not follow. A search with `fixed_shapes` has
more columns of tokens, which are PAD. It may be traced as part of a graph.

The functions here are those of Hugging Face's transformers. Shapes: B batch, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from keras_transformer.presets import SearchConfig
from keras_transformer.special_ids import END
from keras_transformer.utils import Tensor

LogitsProcessor: TypeAlias = Callable[[Tensor, Tensor, int | Tensor], Tensor]

NEVER = float("-inf")  # the logit of what may not follow


def make_processors(config: SearchConfig) -> tuple[LogitsProcessor, ...]:
    """Returns those that a configuration asks for; its own functions come last."""
    processors: list[LogitsProcessor] = []
    if config.repetition_penalty != 1.0:
        processors.append(repetition_penalty(config.repetition_penalty))
    if config.no_repeat_ngram_size:
        processors.append(no_repeated_ngrams(config.no_repeat_ngram_size))
    if config.min_length:
        processors.append(min_length(config.min_length))
    return (*processors, *config.logits_processors)


def apply(
    processors: Sequence[LogitsProcessor], logits: Tensor, tokens: Tensor, position: int | Tensor
) -> Tensor:
    """Applies them one after another; what has no probability at first keeps none."""
    changed = logits
    for process in processors:
        changed = tf.convert_to_tensor(process(changed, tokens, position))
        if changed.dtype != logits.dtype or not changed.shape.is_compatible_with(logits.shape):
            raise ValueError(
                f"A logits processor must return {logits.dtype.name} logits of shape "
                f"{logits.shape}, received {changed.dtype.name} of shape {changed.shape}."
            )
    return tf.where(tf.equal(logits, NEVER), NEVER, changed)


def min_length(length: int) -> LogitsProcessor:
    """Allows no END before so many tokens."""

    def process(logits, _, position):
        is_end = tf.equal(tf.range(logits.shape[-1]), END)
        return tf.where(is_end & (position < length), NEVER, logits)

    return process


def no_repeated_ngrams(size: int) -> LogitsProcessor:
    """Allows no token that would repeat one of the n-grams of a row (Paulus et al., 2017)."""

    def process(logits, tokens, position):
        width = tf.shape(tokens)[1]
        starts = tf.range(width)  # of the n-grams so far
        last = tf.maximum(width - 1, 0)
        tokens = tf.pad(tokens, [[0, 0], [0, 1]])  # so that there is a column to read
        repeats = (starts + size <= position)[tf.newaxis]
        for k in range(size - 1):
            latest = tokens[:, tf.maximum(position - size + 1 + k, 0)]
            earlier = tf.gather(tokens, tf.minimum(starts + k, last), axis=1)
            repeats &= tf.equal(earlier, latest[:, tf.newaxis])
        following = tf.gather(tokens, tf.minimum(starts + size - 1, last), axis=1)
        repeats = tf.broadcast_to(repeats, tf.shape(following))
        return _at_most(logits, following, tf.where(repeats, NEVER, -NEVER))

    return process


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Divides positive logits of a row's tokens, and multiplies others (Keskar et al., 2019)."""

    def process(logits, tokens, position):
        found = tf.gather(logits, tokens, batch_dims=1)
        found = tf.where(found > 0, found / penalty, found * penalty)
        is_there = tf.range(tf.shape(tokens)[1]) < position
        return _at_most(logits, tokens, tf.where(is_there, found, -NEVER))

    return process


def _at_most(logits, ids, limits):
    """Logits `(B, V)`, those of the ids `(B, N)` at most the limits."""
    rows = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, tf.newaxis], tf.shape(ids))
    return tf.tensor_scatter_nd_min(logits, tf.stack([rows, ids], axis=-1), limits)
