"""A batch cut into micro-batches of whole rows: at once, or one after the other.

Micro-batches at once keep the cores of a processor busy that each do an operation of their own
(`kernels/tensorflow/threads.py`). One after the other, they take the memory of one of them.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.typing import Nested, Tensor


def split(batch: Nested, count: int) -> list[Nested]:
    """Cuts a batch into micro-batches that nothing hinders from being computed at once.

    Args:
        batch: Nested structure of tensors `(B, ...)`.
        count: Number of micro-batches; where rows do not divide, some have one more.

    Returns:
        List of as many structures.
    """
    if count == 1:
        return [batch]

    def rows(number):
        def cut(x):
            size = tf.shape(x)[0]
            return x[size * number // count : size * (number + 1) // count]

        return tf.nest.map_structure(cut, batch)

    return [rows(number) for number in range(count)]


def accumulate(
    function: Callable[[Nested], list[Tensor]],
    batch: Nested,
    count: int,
    zeros: list[Tensor],
    fixed: bool = False,
) -> list[Tensor]:
    """Sums what a function makes of micro-batches, one after the other, in the memory of one.

    Args:
        function: From a micro-batch to a list of tensors.
        batch: Nested structure of tensors `(B, ...)`.
        count: Number of micro-batches, of rows alone: where rows do not divide, the first ones have
            one more, and where there are not as many rows, there are not as many micro-batches.
        zeros: List of tensors like those of the function, what the sums start from.
        fixed: Whether a loop must have micro-batches of one shape, as XLA demands. Then there are
            two loops, and `function` is traced twice.

    Returns:
        List of tensors.
    """
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
    size, longer = rows // count, rows % count

    def loop(first, last, sums, extra):
        """Sums up the micro-batches `[first, last)`, of `size` and `extra(number)` rows."""

        def add(number, sums):
            start, length = size * number + tf.minimum(number, longer), size + extra(number)

            def cut(x):
                rest = tf.shape(x)[1:]
                begin = tf.concat([[start], tf.zeros_like(rest)], axis=0)
                part = tf.slice(x, begin, tf.concat([[length], rest], axis=0))
                return tf.ensure_shape(part, [None, *x.shape[1:]]) if x.shape.rank else part

            outputs = function(tf.nest.map_structure(cut, batch))
            return number + 1, [a + b for a, b in zip(sums, outputs, strict=True)]

        # One at a time, else the memory of all of them would be taken at once.
        return tf.while_loop(
            lambda number, _: number < last, add, (first, sums), parallel_iterations=1
        )[1]

    start, last = tf.constant(0), tf.minimum(rows, count)
    if not fixed:
        return loop(start, last, zeros, lambda number: tf.cast(number < longer, tf.int32))
    return loop(longer, last, loop(start, longer, zeros, lambda _: 1), lambda _: 0)
