"""Softmax and smoothed cross-entropy in one, without the logits of a whole batch.

With two passes through different dropout masks, the loss of a token is the mean of both, plus the
divergence of their softmaxes p and q, `α/4·(KL(p‖q) + KL(q‖p))`: R-Drop (Wu et al., 2021,
arXiv:2106.14448), half of equation 4, so that α = 0 is the mean loss.

Shapes: P passes, N positions, C positions of a slice, D width, V vocabulary.
"""

import typing

import tensorflow as tf

from keras_transformer.kernels.backend import multiply
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

    Gradients are computed together with the loss, slice by slice: the logits, by far the largest
    tensor of a training step, exist for one slice at a time and are read as rarely as possible.

    With p the softmax, w the weights, y the labels, X the states and E the matrix:
    `dL/dX = w·(p E − (1 − ε) E[y] − ε mean(E))`, and `dL/dE` likewise: only the terms with p
    are as wide as the vocabulary. The term with y has few rows of E: adding it to the others would
    copy all of them, so it is returned separately, as the gradient of `E[y]`.

    Args:
        states: Float tensor `(P, N, D)`, P passes, 1 or 2; products are computed in its dtype.
        matrix: Float tensor `(V, D)`, preferably in the dtype of its variable.
        labels, weights: int32 `(N,)`, each below V; and float32 `(N,)`, 0 for labels to ignore.
        label_smoothing: ε.
        rdrop: α of R-Drop, above 0 with two passes.

    Returns:
        The sum of the weighted losses, a float32 scalar; its gradients with respect to states,
        matrix (without the next) and the labels' rows of the matrix `(N, D)`; and
        `TokenPredictions` `(N,)` of the first pass. No tape sees any of it.
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
    losses = tf.reduce_sum(states32 * (label_rows - pull), axis=2)
    losses += rdrop / 2 * divergences - log_probs
    gradients = (
        tf.cast(states_grad, states.dtype),
        tf.cast(matrix_grad, matrix.dtype),
        tf.cast(rows_grad, matrix.dtype),
    )
    predictions = TokenPredictions(log_probs[0], correct[0], matrix.shape[0])
    return tf.reduce_sum(weights[:, 0] * losses), gradients, predictions


def _softmax_terms(states, matrix, labels, weighted, rdrop):
    """Returns predictions and the products of softmax with matrix and with `weighted`, float32.

    The predictions are, of each state, log-probability of the label, whether no id is more
    probable, and the divergence from the other pass, whose gradient is added to the softmax.
    """
    passes, count = states.shape[0], tf.shape(states)[1]
    slices = -(-count * passes // SLICE_SIZE)
    size = -(-count // slices)  # equal slices, for little padding

    labels = tf.tile(labels[tf.newaxis], [passes, 1])
    states, labels, weighted = (_cut(x, slices, size) for x in (states, labels, weighted))

    def compute(index, results, matrix_grad=None):
        logits = tf.cast(multiply(states[index], matrix, transpose_y=True), tf.float32)
        softmax = tf.nn.softmax(logits)
        # The softmax's logarithm, also where a probability is too small for a float.
        largest = tf.reduce_max(logits, axis=-1)
        label_logits = tf.gather(logits, labels[index], batch_dims=1)
        log_probs = label_logits - largest + tf.math.log(tf.reduce_max(softmax, axis=-1))
        correct = label_logits >= largest  # cheaper than argmax
        divergences, softmaxes, rows = tf.zeros_like(log_probs), [softmax], weighted[index]
        if passes > 1:
            totals = label_logits - log_probs
            divergences, softmaxes = _add_rdrop(logits, totals, softmax, rdrop)
            rows *= rdrop / 2

        softmaxes = [tf.cast(softmax, matrix.dtype) for softmax in softmaxes]
        mean_rows = tf.concat([multiply(softmax, matrix) for softmax in softmaxes], axis=0)
        mean_rows = tf.cast(mean_rows, tf.float32)
        if passes > 1:
            mean_rows *= rdrop / 2
        pairs = zip(softmaxes, tf.split(rows, passes), strict=True)
        products = [multiply(tf.transpose(softmax), rows) for softmax, rows in pairs]  # (V, D)
        product = tf.add_n([tf.cast(product, tf.float32) for product in products])
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
    *predictions, mean_rows = (_join(array.stack(), passes, count) for array in results)
    # Compute the gradient of the matrix now: since only the optimizer needs it, TensorFlow might
    # compute it last of all, on one core.
    mean_rows, matrix_grad = tf.tuple([mean_rows, matrix_grad])
    return predictions, mean_rows, matrix_grad


def _cut(x, slices, size):
    """Cuts `(P, N, ...)` into slices `(P·C, ...)`, the passes one after the other in each."""
    passes, rest = x.shape[0], tf.shape(x)[2:]
    x = tf.pad(x, [[0, 0], [0, slices * size - tf.shape(x)[1]], *[[0, 0]] * (len(x.shape) - 2)])
    x = tf.reshape(x, tf.concat([[passes, slices, size], rest], axis=0))
    x = _swap(x) if passes > 1 else x
    return tf.reshape(x, tf.concat([[slices, passes * size], rest], axis=0))


def _join(x, passes, count):
    """Joins slices to `(P, N, ...)`: the inverse of `_cut`."""
    slices, rest = tf.shape(x)[0], tf.shape(x)[2:]
    x = tf.reshape(x, tf.concat([[slices, passes, -1], rest], axis=0))
    x = _swap(x) if passes > 1 else x
    return tf.reshape(x, tf.concat([[passes, -1], rest], axis=0))[:, :count]


def _swap(x):
    return tf.transpose(x, [1, 0, *range(2, len(x.shape))])


def _add_rdrop(logits, totals, softmax, rdrop):
    """Returns the divergences of two passes, and their softmaxes plus R-Drop's gradient over α/2.

    The gradient of `α/2·(KL(p‖q) + KL(q‖p))` with respect to the logits of p is
    `α/2·(p·(log p − log q − KL(p‖q)) + p − q)`. Logits, softmax and `totals`, the logarithms of the
    softmaxes' denominators, are those of the second pass after those of the first, `(2·C, V)`.
    """
    (first, second), (p, q) = tf.split(logits, 2), tf.split(softmax, 2)
    total, other_total = tf.split(totals, 2)
    shift, log_ratio = total - other_total, first - second  # log p − log q, but for the shift
    of_p = tf.einsum("cv,cv->c", p, log_ratio) - shift
    of_q = shift - tf.einsum("cv,cv->c", q, log_ratio)
    # As few operations as possible on tensors as wide as the vocabulary.
    constant = 1 + 2 / rdrop
    sums = [
        p * (log_ratio + (constant - of_p - shift)[:, tf.newaxis]) - q,
        q * ((constant - of_q + shift)[:, tf.newaxis] - log_ratio) - p,
    ]
    return tf.concat([of_p, of_q], axis=0), sums
