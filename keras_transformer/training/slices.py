"""Slices of a batch, whole rows, computed in parallel or sequentially.

Parallel slices (`TokenTrainer.parallel_microbatches`) keep all cores busy if each runs one
operation at a time (`configure_threads`). Sequential slices (gradient accumulation) need the memory
of one.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TypeAlias

import keras
import tensorflow as tf

from keras_transformer.training.labels import token_weights
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.utils import Nested, Tensor

# Gradient of a variable: dense, of the rows that were looked up, or None.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def split(batch: Nested, count: int) -> list[Nested]:
    """Splits a batch into independent slices.

    Args:
        batch: Nested structure of tensors `(B, ...)`.
        count: Number of slices; if it does not divide the rows, some slices have one more.

    Returns:
        List of structures.
    """
    if count == 1:
        return [batch]

    def take_rows(x, number):
        size = tf.shape(x)[0]
        return x[size * number // count : size * (number + 1) // count]

    return [
        tf.nest.map_structure(functools.partial(take_rows, number=number), batch)
        for number in range(count)
    ]


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


def count_tokens(loss: Nested, y: Nested, sample_weight: Nested = None) -> Tensor:
    """Counts the entries that a model's loss averages over on this replica: a float32 scalar.

    For `SmoothedCrossEntropy`, the weighted target tokens; for Keras' losses, the rows, or the
    labels other than `ignore_class`; for several outputs, the sum over all of them.

    Args:
        loss: The `loss` of `compile`.
        y, sample_weight: Labels and weights of a batch.
    """
    losses, labels = tf.nest.flatten(loss), tf.nest.flatten(y)
    losses = losses if len(losses) == len(labels) else losses[:1] * len(labels)
    weights = [None] * len(labels) if sample_weight is None else tf.nest.flatten(sample_weight)
    outputs = zip(losses, labels, weights, strict=True)
    return tf.add_n([_count_entries(*output) for output in outputs])


def _count_entries(loss, labels, sample_weight):
    if counts_tokens(loss):
        return tf.reduce_sum(token_weights(labels, sample_weight))
    labels = labels if tf.is_tensor(labels) else tf.convert_to_tensor(labels)
    ids = labels.dtype.is_integer and labels.shape.rank == 2
    if ids and not averages_as_keras(loss):
        return tf.reduce_sum(token_weights(labels, sample_weight))
    ignored = getattr(loss, "ignore_class", None)
    shape = tf.shape(labels)[:1] if ignored is None else tf.shape(labels)
    counts = tf.ones(shape) if ignored is None else tf.cast(labels != ignored, "float32")
    weighted = getattr(loss, "reduction", None) == "mean_with_sample_weight"
    if weighted and sample_weight is not None:
        counts = tf.cast(sample_weight, "float32") * (1.0 if ignored is None else counts)
    return tf.reduce_sum(counts)


def counts_tokens(loss: object) -> bool:
    """Returns whether a loss is a mean over target tokens."""
    is_mean = getattr(loss, "reduction", None) == "mean_with_sample_weight"
    return isinstance(loss, SmoothedCrossEntropy) and is_mean


def averages_as_keras(loss: object) -> bool:
    """Returns whether a loss is Keras' and a mean over rows or over labels not ignored."""
    if isinstance(loss, str):
        return True
    kind = loss if callable(loss) and not isinstance(loss, keras.losses.Loss) else type(loss)
    means = "sum_over_batch_size", "mean", "mean_with_sample_weight"
    is_keras = getattr(keras.losses, getattr(kind, "__name__", ""), None) is kind
    return is_keras and getattr(loss, "reduction", means[0]) in means
