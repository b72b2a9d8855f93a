"""Many sentences cut into parts, so that decoding keeps more than one core busy.

A decoding loop does one small thing after another. Where each operation has one core, as servers
are advised to have it (`TF_NUM_INTRAOP_THREADS=1`), a single large request would leave the others
idle.

Shapes: B rows, T target length.
"""

import functools
import itertools
from collections.abc import Callable, Mapping

import tensorflow as tf

from keras_transformer.special_ids import PAD
from keras_transformer.typing import SearchOutputs, Tensor

FEWEST_ROWS = 12  # of a part: with fewer, reading the weights costs more than another core brings
PARTS = 1, 2, 4


def in_parts(
    search_rows: Callable[..., SearchOutputs], inputs: Mapping[str, Tensor]
) -> SearchOutputs:
    """Searches for the rows' translations in several parts, as many at once as there are threads.

    Args:
        search_rows: Function from some rows of all inputs to tokens `(B, ..., T)`, lengths and
            log-probabilities `(B, ...)`. What it finds for a row must depend on nothing but that
            row. Nothing in it may have side effects, as tokenizers have: TensorFlow would do it
            part by part.
        inputs: {name: tensor with B rows}, its keyword arguments.

    Returns:
        What `search_rows` would for all rows.
    """
    if tf.executing_eagerly():
        return search_rows(**inputs)
    # Several calls of one function, which stays one in the graph. The rounds of a `tf.while_loop`
    # would not be computed at the same time.
    search_rows = tf.function(
        search_rows,
        autograph=False,
        reduce_retracing=True,
        experimental_attributes={"_noinline": True},
    )
    rows = tf.shape(next(iter(inputs.values())))[0]

    def in_so_many(parts):
        bounds = [rows * part // parts for part in range(parts + 1)]
        outputs = [
            search_rows(**{name: _rows(x, i, j) for name, x in inputs.items()})
            for i, j in itertools.pairwise(bounds)
        ]
        tokens, lengths, log_probs = zip(*outputs, strict=True)
        length = tf.reduce_max([tf.shape(x)[-1] for x in tokens])
        tokens = [_pad(x, length) for x in tokens]
        return tf.concat(tokens, 0), tf.concat(lengths, 0), tf.concat(log_probs, 0)

    choice = tf.reduce_sum([tf.cast(rows >= FEWEST_ROWS * n, tf.int32) for n in PARTS[1:]])
    return tf.switch_case(choice, [functools.partial(in_so_many, parts) for parts in PARTS])


def _rows(x, start, end):
    """Some rows, of a shape that says as much for every part: one function serves them all."""
    return tf.ensure_shape(x[start:end], [None] * x.shape.rank)


def _pad(tokens, length):
    missing = length - tf.shape(tokens)[-1]
    return tf.pad(tokens, [*[[0, 0]] * (tokens.shape.rank - 1), [0, missing]], constant_values=PAD)
