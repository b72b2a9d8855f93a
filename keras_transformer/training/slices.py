"""Slices of a batch, whole rows, computed in parallel or sequentially.

Parallel slices (`TokenTrainer.parallel_microbatches`) keep all cores busy if each runs one
operation at a time (`configure_threads`). Sequential slices (gradient accumulation) need the memory
of one.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from keras_transformer.special_ids import PAD
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.utils import Nested, Tensor

# Gradient of a variable: dense, of the rows that were looked up, or None.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def split(batch: Nested, count: int) -> list[Nested]:
    """Splits a batch `(x, y)` or `(x, y, sample_weight)` into independent slices.

    If there are fewer rows than slices, the other slices repeat the last row without its labels: a
    layer such as BatchNormalization makes NaN of a slice without rows.

    Args:
        batch: Tensors `(B, ...)`; `y` are ids.
        count: Number of slices; if it does not divide the rows, some slices have one more.
    """
    if count == 1:
        return [batch]
    x, y, *weights = batch
    rows = tf.shape(y)[0]
    size = tf.where(rows > 0, tf.maximum(rows, count), 0)
    numbers = tf.minimum(tf.range(size), rows - 1)
    x, y, weights = tf.nest.map_structure(
        lambda tensor: tf.gather(tensor, numbers), (x, y, weights)
    )
    y = tf.where((tf.range(size) < rows)[:, tf.newaxis], y, PAD)

    def take_rows(number):
        rows = slice(size * number // count, size * (number + 1) // count)
        return tf.nest.map_structure(lambda tensor: tensor[rows], (x, y, *weights))

    return [take_rows(number) for number in range(count)]


def accumulate(
    function: Callable[[Nested], list[Tensor]],
    batch: Nested,
    count: int,
    zeros: list[Tensor],
    fixed: bool = False,
) -> list[Tensor]:
    """Sums the outputs of a function over slices, one slice after the other.

    Args:
        function: From a slice to a list of tensors.
        batch: Nested structure of tensors `(B, ...)`.
        count: Number of slices. If it does not divide the rows, the first slices have one row more;
            if there are fewer rows, there are fewer slices.
        zeros: Tensors like those of the function, from which the sums start.
        fixed: Whether all slices of a loop must have one shape, as XLA demands. Then there are two
            loops, and `function` is traced twice.

    Returns:
        List of tensors.
    """
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
    size, longer = rows // count, rows % count

    def loop(first, last, sums, extra):
        """Adds the slices `[first, last)`, of `size` and `extra(number)` rows."""

        def add(number, sums):
            start = size * number + tf.minimum(number, longer)
            outputs = function(_slice(batch, start, size + extra(number)))
            return number + 1, [a + b for a, b in zip(sums, outputs, strict=True)]

        # One at a time: otherwise TensorFlow would hold the memory of all of them.
        return tf.while_loop(
            lambda number, _: number < last, add, (first, sums), parallel_iterations=1
        )[1]

    start, last = tf.constant(0), tf.minimum(rows, count)
    if not fixed:
        return loop(start, last, zeros, lambda number: tf.cast(number < longer, tf.int32))
    return loop(longer, last, loop(start, longer, zeros, lambda _: 1), lambda _: 0)


def _slice(batch, start, length):
    def slice_rows(x):
        rest = tf.shape(x)[1:]
        begin = tf.concat([[start], tf.zeros_like(rest)], axis=0)
        rows = tf.slice(x, begin, tf.concat([[length], rest], axis=0))
        return tf.ensure_shape(rows, [None, *x.shape[1:]]) if x.shape.rank else rows

    return tf.nest.map_structure(slice_rows, batch)


def sum_gradients(gradients: Iterable[Gradient]) -> Gradient:
    """Sums a variable's gradients over all parallel slices and paths; None if all are None.

    The result is dense: in a sparse one, rows that occur several times would be separate gradients
    for Keras' Adam, which adds their squares. Sparse ones are added to a dense one as they are.
    """
    gradients = [gradient for gradient in gradients if gradient is not None]
    dense = [gradient for gradient in gradients if not isinstance(gradient, tf.IndexedSlices)]
    sparse = [gradient for gradient in gradients if isinstance(gradient, tf.IndexedSlices)]
    if sparse:
        rows = tf.concat([gradient.indices for gradient in sparse], axis=0)
        values = tf.concat([gradient.values for gradient in sparse], axis=0)
        if not dense:
            return tf.convert_to_tensor(tf.IndexedSlices(values, rows, sparse[0].dense_shape))
    if not dense:
        return None
    total = tf.add_n(dense)
    return tf.tensor_scatter_nd_add(total, rows[:, tf.newaxis], values) if sparse else total


def reason_against_slices(model: Any, y: Nested = None) -> str | None:
    """Returns why the loss of a model is not a mean over target tokens, as part of a sentence.

    Args:
        model: A compiled `TokenTrainer`.
        y: Labels of a batch, if known.

    Returns:
        None if the loss is such a mean: slices and replicas can be averaged by their tokens.
    """
    if tf.nest.is_nested(model.loss):
        return "the loss is a list or dictionary"
    if not isinstance(model.loss, SmoothedCrossEntropy):
        name = getattr(model.loss, "name", getattr(model.loss, "__name__", model.loss))
        return f"the loss is {name}"
    if model.loss.reduction != "mean_with_sample_weight":
        return f"the reduction of the loss is {model.loss.reduction!r}"
    if type(model).compute_loss is not keras.Model.compute_loss:
        return f"{type(model).__name__} overrides compute_loss"
    return "the model has several outputs" if tf.nest.is_nested(y) else None
