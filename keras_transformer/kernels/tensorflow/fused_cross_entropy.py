"""Softmax and smoothed cross-entropy in one, without the logits of a whole batch.

Shapes: P passes, N positions, C positions of a slice, D width, V vocabulary.
"""

import typing

import tensorflow as tf

from keras_transformer.kernels.products import multiply
from keras_transformer.utils import Tensor

# Maximum number of positions computed at a time: enough for a matrix product at full speed, and to
# add up the gradient of the matrix rarely; few enough for a processor's cache.
SLICE_SIZE = 1024


class TokenPredictions(typing.NamedTuple):
    """The values that metrics need, computed from logits of shape `(..., V)`."""

    log_probs: tf.Tensor  # float32 (...), natural log-probability of the label
    correct: tf.Tensor  # bool (...), whether no id is more probable than the label
    vocabulary_size: int  # V


def fused_cross_entropy(
    states: Tensor,
    matrix: Tensor,
    labels: Tensor,
    weights: Tensor,
    label_smoothing: float,
    rdrop: float = 0.0,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], TokenPredictions]:
    """Computes `SmoothedCrossEntropy` of the logits `states · matrixᵀ`, summed, not averaged.

    Gradients are computed together with the loss, slice by slice, so that the logits, by far the
    largest tensor of a training step, exist for one slice at a time and are read as rarely as
    possible.

    With p the softmax, w the weights, y the labels, X the states and E the matrix:
    `dL/dX = w·(p E − (1 − ε) E[y] − ε mean(E))`, and `dL/dE` likewise: only the terms with p
    are as wide as the vocabulary. The term with y has few rows of E: adding it to the others would
    copy all of them, so it is returned separately, as the gradient of `E[y]`.

    With two passes through different dropout masks, the loss of a token is the mean of both, plus
    the divergence of their softmaxes p and q, `α/4·(KL(p‖q) + KL(q‖p))`: R-Drop (Wu et al., 2021,
    arXiv:2106.14448), half of equation 4, so that α = 0 is the mean loss.

    Args:
        states: Float tensor `(P, N, D)`, P passes, 1 or 2; products are computed in its dtype.
        matrix: Float tensor `(V, D)`, preferably in the dtype of its variable.
        labels: int32 `(N,)`, each below V.
        weights: float32 `(N,)`; 0 for labels to ignore. Include any scale of the loss here: that
            saves passes over the gradients.
        label_smoothing: ε.
        rdrop: α, used with two passes.

    Returns:
        The sum of the weighted losses, a float32 scalar; its gradients with respect to states,
        matrix (without the next) and the labels' rows of the matrix `(N, D)`, in the dtypes of
        states and matrix; and `TokenPredictions` of shape `(N,)`, those of the first pass. None of
        them is differentiable.
    """
    states, matrix = tf.stop_gradient(states), tf.stop_gradient(matrix)
    states32, factor = tf.cast(states, tf.float32), tf.cast(matrix, states.dtype)
    weights = weights[:, tf.newaxis] / states.shape[0]
    weighted = weights * states32
    # A state of zeros has the same logit for every id. So for one more such state, the product of
    # softmax and matrix is the mean of the rows, and its weight adds the smoothing's gradient.
    smoothing_weight = -label_smoothing * tf.reduce_sum(weighted, axis=1, keepdims=True)
    predictions, mean_rows, matrix_grad = _softmax_terms(
        tf.pad(states, [[0, 0], [0, 1], [0, 0]]),
        factor,
        tf.pad(labels, [[0, 1]]),
        tf.cast(tf.concat([weighted, smoothing_weight], axis=1), states.dtype),
        rdrop,
    )
    log_probs, correct, divergences = (x[:, :-1] for x in predictions)
    label_rows = tf.cast(tf.gather(factor, labels), tf.float32)
    # The target of a state: the row of its label, mixed with the mean of all rows.
    pull = (1 - label_smoothing) * label_rows + label_smoothing * mean_rows[0, -1]
    states_grad = weights * (mean_rows[:, :-1] - pull)
    rows_grad = (label_smoothing - 1) * tf.reduce_sum(weighted, axis=0)
    losses = tf.reduce_sum(states32 * (label_rows - pull), axis=2) - log_probs
    losses += rdrop / 2 * divergences
    gradients = (
        tf.cast(states_grad, states.dtype),
        tf.cast(matrix_grad, matrix.dtype),
        tf.cast(rows_grad, matrix.dtype),
    )
    predictions = TokenPredictions(log_probs[0], correct[0], matrix.shape[0])
    return tf.reduce_sum(weights[:, 0] * losses), gradients, predictions


def _softmax_terms(states, matrix, labels, weighted, rdrop):
    """Returns, of each state, log-probability and rank of the label and the divergence from the
    other pass; and the products of softmax with matrix and with `weighted`, float32.

    With two passes, the products are those of the softmax plus the gradient of the divergence.
    """
    passes, count = states.shape[0], tf.shape(states)[1]
    slices = -(-count * passes // SLICE_SIZE)
    size = -(-count // slices)  # equal slices, for little padding

    def cut_slices(x):
        """Cuts `(P, N, ...)` into slices `(P·C, ...)`, pass by pass."""
        x = tf.pad(x, [[0, 0], [0, slices * size - count], *[[0, 0]] * (len(x.shape) - 2)])
        x = tf.reshape(x, tf.concat([[passes, slices, size], tf.shape(x)[2:]], axis=0))
        if passes > 1:
            x = tf.transpose(x, [1, 0, 2, *range(3, len(x.shape))])
        return tf.reshape(x, tf.concat([[slices, passes * size], tf.shape(x)[3:]], axis=0))

    labels = tf.tile(labels[tf.newaxis], [passes, 1])
    states, labels, weighted = cut_slices(states), cut_slices(labels), cut_slices(weighted)

    def compute(index, results, matrix_grad=None):
        logits = tf.cast(multiply(states[index], matrix, transpose_y=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        label_probs = tf.gather(softmax, labels[index], batch_dims=1)
        # The softmax's logarithm, unless a probability is too small for a float.
        log_probs = tf.cond(
            tf.reduce_all(label_probs > 1e-30),
            lambda: tf.math.log(label_probs),
            lambda: tf.gather(tf.nn.log_softmax(logits), labels[index], batch_dims=1),
        )
        correct = label_probs >= tf.reduce_max(softmax, axis=-1)  # cheaper than argmax
        divergences = tf.zeros_like(log_probs)
        if passes > 1:
            label_logits = tf.gather(logits, labels[index], batch_dims=1)
            divergences, softmax, scale = _diverge(logits, label_logits - log_probs, softmax, rdrop)

        softmax = tf.cast(softmax, matrix.dtype)
        mean_rows = tf.cast(multiply(softmax, matrix), tf.float32)
        product = multiply(tf.transpose(softmax), weighted[index])  # (V, D)
        product = tf.cast(product, tf.float32)
        new = (log_probs, correct, divergences, mean_rows)
        results = [array.write(index, x) for array, x in zip(results, new, strict=True)]
        return index + 1, results, product if matrix_grad is None else matrix_grad + product

    dtypes = (tf.float32, tf.bool, tf.float32, tf.float32)
    empty = [tf.TensorArray(dtype, slices) for dtype in dtypes]
    # One slice at a time, to save memory; the first one before the loop, which would otherwise
    # start from zeros.
    _, results, matrix_grad = tf.while_loop(
        lambda index, *_: index < slices,
        compute,
        compute(tf.constant(0), empty),
        parallel_iterations=1,
    )

    def join_slices(x):
        """Returns `(P, N, ...)`, the inverse of `cut_slices`."""
        if passes > 1:
            x = tf.reshape(x, tf.concat([[slices, passes, size], tf.shape(x)[2:]], axis=0))
            x = tf.transpose(x, [1, 0, 2, *range(3, len(x.shape))])
        shape = tf.concat([[passes, slices * size], tf.shape(x)[2 + (passes > 1) :]], axis=0)
        return tf.reshape(x, shape)[:, :count]

    *predictions, mean_rows = (join_slices(array.stack()) for array in results)
    # Compute the gradient of the matrix now: since only the optimizer needs it, TensorFlow might
    # compute it last of all, on one core.
    mean_rows, matrix_grad = tf.tuple([mean_rows, matrix_grad])
    return predictions, mean_rows, matrix_grad


def _diverge(logits, totals, softmax, rdrop):
    """Returns KL(p‖q) and KL(q‖p), `(2·C,)`, and the softmaxes plus the gradient of R-Drop.

    The gradient of `½·α·(KL(p‖q) + KL(q‖p))` with respect to the logits of p is
    `½·α·(p·(log p − log q − KL(p‖q)) + p − q)`.

    Args:
        logits, softmax: Of two passes, one after the other, `(2·C, V)`.
        totals: The logarithms of the softmaxes' denominators, `(2·C,)`.
        rdrop: α.
    """
    (first, second), (total, other_total) = tf.split(logits, 2), tf.split(totals, 2)
    log_ratio = first - second - (total - other_total)[:, tf.newaxis]
    p, q = tf.split(softmax, 2)
    divergences = tf.einsum("cv,cv->c", p, log_ratio), -tf.einsum("cv,cv->c", q, log_ratio)
    scale = tf.constant(rdrop / 2)
    # Few passes over memory: all but the sum of each is a factor of the softmax.
    shifts = [(1 + 1 / scale - divergence)[:, tf.newaxis] for divergence in divergences]
    sums = p * (shifts[0] + log_ratio) - q, q * (shifts[1] - log_ratio) - p
    return tf.concat(divergences, axis=0), tf.concat(sums, axis=0), scale
