"""Gradients of a training step: slices of a batch, the fused loss and R-Drop.

Parallel slices (`TokenTrainer.parallel_microbatches`) keep all cores busy if each runs one
operation at a time (`configure_threads`). Sequential slices (gradient accumulation) need the memory
of one. The fused loss never holds the logits of a whole batch.

Shapes: B batch, T target length, D width, V vocabulary.
"""

import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from keras_transformer.kernels.tensorflow.fused_cross_entropy import (
    TokenPredictions,
    fused_cross_entropy,
)
from keras_transformer.special_ids import PAD
from keras_transformer.training.losses import (
    SmoothedCrossEntropy,
    TargetTokens,
    TokenMetric,
    read_labels,
)
from keras_transformer.utils import Nested, Tensor

# Gradient of a variable: dense, of the rows that were looked up, or None.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


# Metrics that ignore padding and need no logits.
PER_TOKEN = (TokenMetric, TargetTokens)


# Slices.


def averages_tokens(model: Any, y: Nested = None) -> bool:
    """Returns whether the loss of a `TokenTrainer` is a mean over target tokens.

    Then slices and replicas can be averaged by their tokens.
    """
    return (
        isinstance(model.loss, SmoothedCrossEntropy)
        and model.loss.reduction == "mean_with_sample_weight"
        and type(model).compute_loss is keras.Model.compute_loss
        and not tf.nest.is_nested(y)  # one output
    )


def split(batch: Nested, count: int) -> list[Nested]:
    """Splits `(x, y, token weights)`, and sample weights if any, into independent slices.

    Some slices may have one row more. If there are fewer rows than slices, the others repeat the
    last row without its labels: a layer such as BatchNormalization makes NaN of a slice without
    rows.
    """
    if count == 1:
        return [batch]
    x, y, token_weights, *sample_weight = batch
    rows = tf.shape(y)[0]
    size = tf.where(rows > 0, tf.maximum(rows, count), 0)
    numbers = tf.minimum(tf.range(size), rows - 1)
    x, y, token_weights, sample_weight = tf.nest.map_structure(
        lambda tensor: tf.gather(tensor, numbers), (x, y, token_weights, sample_weight)
    )
    is_row = (tf.range(size) < rows)[:, tf.newaxis]
    y, token_weights = tf.where(is_row, y, PAD), tf.where(is_row, token_weights, 0.0)

    parts = x, y, token_weights, *sample_weight
    bounds = [size * number // count for number in range(count + 1)]
    slices = itertools.starmap(slice, itertools.pairwise(bounds))
    return [tf.nest.map_structure(operator.itemgetter(rows), parts) for rows in slices]


def accumulate(
    function: Callable[[Nested], list[Tensor]],
    batch: Nested,
    count: int,
    zeros: list[Tensor],
    fixed: bool = False,
) -> list[Tensor]:
    """Sums the outputs of a function over `count` slices, one after the other, from `zeros` on.

    If `count` does not divide the rows, the first slices have one row more; if there are fewer
    rows, there are fewer slices. If the slices of a loop must have a `fixed` shape, as XLA demands,
    there are two loops, and the function is traced twice.
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


# The fused loss.


def allows_fused_loss(model: Any, metrics: list[keras.metrics.Metric]) -> bool:
    """Returns whether neither the loss of a `TokenTrainer` nor its compiled metrics need logits."""
    return (
        model.has_fused_loss()
        # The output of a quantized layer is not a product with its kernel.
        and not any(layer.quantization_mode for layer in model.layers)
        and type(model.loss) is SmoothedCrossEntropy
        and averages_tokens(model)
        and model._compile_loss._user_loss_weights is None
        and all(isinstance(metric, PER_TOKEN) for metric in metrics)
        and type(model).compute_metrics is keras.Model.compute_metrics
    )


def fused_gradients(
    model: Any, x: Nested, y: Tensor, share: Tensor
) -> tuple[Tensor, TokenPredictions, list[list[Gradient]]]:
    """Computes loss and gradients without the logits of the whole batch (`fused_cross_entropy`).

    `share` is the weight of the mean over these target tokens, a float32 scalar. Returns the mean
    loss, `TokenPredictions` `(B, T)`, and the gradients of the trainable variables by three paths:
    through states and penalties, the softmax's matrix, and the labels' rows.
    """
    passes = 2 if model.rdrop else 1
    with tf.GradientTape(persistent=True) as tape:
        states, matrix = model.softmax_inputs(repeat_batch(x, passes), training=True)
        rows = tf.shape(states)[0] // passes
        ids, weights = read_labels(y, states[:rows], matrix.shape[0])
        labels = tf.reshape(ids, [-1])
        label_rows = tf.gather(matrix, labels)
        penalties = model.losses
    scale = model.optimizer.scale_loss(share)
    weights *= tf.math.divide_no_nan(scale, tf.reduce_sum(weights))
    loss, (states_grad, matrix_grad, rows_grad), predictions = fused_cross_entropy(
        tf.reshape(states, [passes, -1, states.shape[-1]]),
        matrix,
        labels,
        tf.reshape(weights, [-1]),
        model.loss.label_smoothing,
        model.rdrop,
    )
    upstream = [tf.reshape(states_grad, tf.shape(states)), *[scale] * len(penalties)]
    variables = model.trainable_variables
    sparse = tape.gradient(label_rows, variables, rows_grad)
    if not any(isinstance(gradient, tf.IndexedSlices) for gradient in sparse):
        # The matrix is not a variable but computed from some, so its rows are not rows of theirs.
        matrix_grad = tf.tensor_scatter_nd_add(matrix_grad, labels[:, tf.newaxis], rows_grad)
        sparse = [None] * len(variables)
    gradients = [
        tape.gradient([states, *penalties], variables, upstream),
        tape.gradient(matrix, variables, matrix_grad),
        sparse,
    ]
    loss = tf.add_n([tf.math.divide_no_nan(loss, scale), *penalties])
    log_probs, correct = (tf.reshape(x, tf.shape(ids)) for x in predictions[:2])
    return loss, predictions._replace(log_probs=log_probs, correct=correct), gradients


# R-Drop.


def repeat_batch(x: Nested, passes: int) -> Nested:
    """Repeats a batch as a whole, for passes through different dropout masks."""
    if passes == 1:
        return x
    return tf.nest.map_structure(lambda x: x if x is None else tf.concat([x] * passes, axis=0), x)


def rdrop_term(y: Tensor, logits: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Computes R-Drop's term of the loss over α from logits (arXiv:2106.14448, half of equation 4).

    It is the mean of `¼·(KL(p‖q) + KL(q‖p))` over the target tokens of the labels `(B, T)`. The
    logits `(2·B, T, V)` hold those of the second pass after those of the first.
    """
    log_p, log_q = tf.split(tf.nn.log_softmax(tf.cast(logits, tf.float32)), 2)
    _, weights = read_labels(y, log_p, logits.shape[-1], sample_weight)
    values = tf.reduce_sum((tf.exp(log_p) - tf.exp(log_q)) * (log_p - log_q), axis=-1) / 4
    return tf.math.divide_no_nan(tf.reduce_sum(weights * values), tf.reduce_sum(weights))
