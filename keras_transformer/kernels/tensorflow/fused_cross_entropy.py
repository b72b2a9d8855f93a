"""Softmax and smoothed cross-entropy in one, without the logits of a whole batch.

Shapes: N positions, C positions of a part, D width, V vocabulary.
"""

import typing

import tensorflow as tf

from keras_transformer.kernels.products import multiply
from keras_transformer.typing import Tensor

# Most positions computed at a time: enough for a matrix product at full speed, and for the
# gradient of the matrix, added up once per part, not to count; few enough for a processor's cache.
PART = 1024


class TokenPredictions(typing.NamedTuple):
    """The part of logits of shape `(..., V)` that metrics need."""

    log_probs: tf.Tensor  # float32 (...), natural log-probability of the label
    correct: tf.Tensor  # bool (...), whether no id is more probable than the label
    vocabulary_size: int  # V


def fused_cross_entropy(
    states: Tensor, matrix: Tensor, labels: Tensor, weights: Tensor, label_smoothing: float
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], TokenPredictions]:
    """Computes `SmoothedCrossEntropy` of the logits `states · matrixᵀ`, summed, not averaged.

    Gradients are computed together with the loss, part by part, so that the logits, by far the
    largest tensor of a training step, exist for a part at a time and are read as seldom as can be.
    With p the softmax, w the weights, y the labels, X the states and E the matrix:
    `dL/dX = w·(p E − (1 − ε) E[y] − ε mean(E))`, and `dL/dE` likewise: only the terms with p
    are as wide as the vocabulary. The one with y reaches few rows of E: to add it to the others
    would cost a copy of all of them, so it is returned as it is, the gradient of `E[y]`.

    Args:
        states: Float tensor `(N, D)`; products are computed in its dtype.
        matrix: Float tensor `(V, D)`, best in the dtype of the variable it is.
        labels: int32 `(N,)`, each below V.
        weights: float32 `(N,)`; 0 where a label does not count. Whatever the loss is to be scaled
            by is best done here: that spares passes over gradients.
        label_smoothing: ε.

    Returns:
        The sum of the weighted losses, a float32 scalar; its gradients with respect to states,
        matrix and the labels' rows of the matrix `(N, D)`, which the second one leaves out, each in
        the dtype of what it belongs to; and `TokenPredictions` of shape `(N,)`. None of them is
        differentiable any further.
    """
    states, matrix = tf.stop_gradient(states), tf.stop_gradient(matrix)
    states32, factor = tf.cast(states, tf.float32), tf.cast(matrix, states.dtype)
    weighted = weights[:, tf.newaxis] * states32
    # A state of zeros has the same logit for every id. So with one more of them, the mean of the
    # rows is what its softmax gives, and the smoothing's gradient what its weight adds to each row.
    smoothing_weight = -label_smoothing * tf.reduce_sum(weighted, axis=0, keepdims=True)
    predictions, mean_rows, matrix_grad = _softmax_terms(
        tf.pad(states, [[0, 1], [0, 0]]),
        factor,
        tf.pad(labels, [[0, 1]]),
        tf.cast(tf.concat([weighted, smoothing_weight], axis=0), states.dtype),
    )
    log_probs, correct = (x[:-1] for x in predictions)
    label_rows = tf.cast(tf.gather(factor, labels), tf.float32)
    # What a state is pulled towards: the row of its label, mixed with the mean of all rows.
    pull = (1 - label_smoothing) * label_rows + label_smoothing * mean_rows[-1]
    states_grad = weights[:, tf.newaxis] * (mean_rows[:-1] - pull)
    rows_grad = (label_smoothing - 1) * weighted
    losses = tf.reduce_sum(states32 * (label_rows - pull), axis=1) - log_probs
    gradients = (
        tf.cast(states_grad, states.dtype),
        tf.cast(matrix_grad, matrix.dtype),
        tf.cast(rows_grad, matrix.dtype),
    )
    predictions = TokenPredictions(log_probs, correct, matrix.shape[0])
    return tf.reduce_sum(weights * losses), gradients, predictions


def _softmax_terms(states, matrix, labels, weighted):
    """Predictions; the softmaxes' products with the matrix; theirs with `weighted`, float32."""
    count = tf.shape(states)[0]
    parts = -(-count // PART)
    size = -(-count // parts)  # of equal parts, so that little is padding

    def cut(x):
        x = tf.pad(x, [[0, parts * size - count], *[[0, 0]] * (len(x.shape) - 1)])
        return tf.reshape(x, tf.concat([[parts, size], tf.shape(x)[1:]], axis=0))

    states, labels, weighted = cut(states), cut(labels), cut(weighted)

    def compute(part, results, matrix_grad=None):
        logits = tf.cast(multiply(states[part], matrix, transpose_y=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        label_probs = tf.gather(softmax, labels[part], batch_dims=1)
        # The softmax's logarithm, unless one of them is too small for a float to hold it exactly.
        log_probs = tf.cond(
            tf.reduce_all(label_probs > 1e-30),
            lambda: tf.math.log(label_probs),
            lambda: tf.gather(tf.nn.log_softmax(logits), labels[part], batch_dims=1),
        )
        correct = label_probs >= tf.reduce_max(softmax, axis=-1)  # cheaper than looking for argmax

        softmax = tf.cast(softmax, matrix.dtype)
        mean_rows = tf.cast(multiply(softmax, matrix), tf.float32)
        product = multiply(tf.transpose(softmax), weighted[part])  # (V, D)
        product = tf.cast(product, tf.float32)
        new = (log_probs, correct, mean_rows)
        results = [array.write(part, x) for array, x in zip(results, new, strict=True)]
        return part + 1, results, product if matrix_grad is None else matrix_grad + product

    empty = [tf.TensorArray(dtype, parts) for dtype in (tf.float32, tf.bool, tf.float32)]
    # One part at a time, else the memory of all of them would be taken at once; and the first one
    # before the loop, which would have to start from zeros.
    _, results, matrix_grad = tf.while_loop(
        lambda part, *_: part < parts,
        compute,
        compute(tf.constant(0), empty),
        parallel_iterations=1,
    )
    log_probs, correct, mean_rows = (array.concat()[:count] for array in results)
    # What follows waits for the gradient of the matrix: only the update needs it, so it might be
    # computed last of all, by one core alone.
    mean_rows, matrix_grad = tf.tuple([mean_rows, matrix_grad])
    return (log_probs, correct), mean_rows, matrix_grad
