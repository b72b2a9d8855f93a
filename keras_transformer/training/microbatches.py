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
    function: Callable[[Nested], list[Tensor]], batch: Nested, count: int, zeros: list[Tensor]
) -> list[Tensor]:
    """Sums what a function makes of micro-batches, one after the other, in the memory of one.

    Args:
        function: From a micro-batch to a list of tensors.
        batch: Nested structure of tensors `(B, ...)`. Rows of zeros fill the last micro-batch up:
            all have one shape, as XLA needs it in a loop.
        count: Number of micro-batches.
        zeros: List of tensors like those of the function, what the sums start from.

    Returns:
        List of tensors.
    """

    def stack(x):
        missing = -tf.shape(x)[0] % count
        x = tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)])
        return tf.reshape(x, tf.concat([[count, -1], tf.shape(x)[1:]], axis=0))

    stacked = tf.nest.map_structure(stack, batch)

    def add(number, sums):
        outputs = function(tf.nest.map_structure(lambda x: x[number], stacked))
        return number + 1, [a + b for a, b in zip(sums, outputs, strict=True)]

    return tf.while_loop(
        lambda number, _: number < count,
        add,
        (tf.constant(0), zeros),
        maximum_iterations=count,
        # One at a time, else the memory of all of them would be taken at once.
        parallel_iterations=1,
    )[1]
