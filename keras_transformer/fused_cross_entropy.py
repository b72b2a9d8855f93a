"""Softmax and smoothed cross-entropy in one, without the logits of a whole batch.

Shapes: N positions, C positions of a part, D width, V vocabulary, V' ids of a share of it.
"""

import itertools
import typing

import tensorflow as tf

# Most positions worked off at a time, for each share of the vocabulary: enough for a matrix product
# at full speed, and for the gradient of the matrix, added up once per part, not to count; few
# enough for a processor's cache.
PART = 1024


class TokenPredictions(typing.NamedTuple):
    """What metrics need to know about logits of shape `(..., V)`."""

    log_probs: tf.Tensor  # float32 (...), natural log-probability of the label
    correct: tf.Tensor  # bool (...), whether no id is more probable than the label


def fused_cross_entropy(states, matrix, labels, weights, label_smoothing, shares=1):
    """What `SmoothedCrossEntropy` is of the logits `states · matrixᵀ`, summed instead of averaged.

    Gradients are computed together with the loss, part by part, so that the logits, by far the
    largest tensor of a training step, exist for a part at a time and are read as seldom as can be.
    With p the softmax, w the weights, y the labels, X the states and E the matrix:
    `dL/dX = w·(p E − (1 − ε) E[y] − ε mean(E))`, and `dL/dE` likewise: only the terms with p
    are as wide as the vocabulary.

    Args:
        states: Float tensor `(N, D)`; products are computed in its dtype.
        matrix: Float tensor `(V, D)`, best in the dtype of the variable it is.
        labels: int32 `(N,)`.
        weights: float32 `(N,)`; 0 for padding. Whatever the loss is to be scaled by is best done
            here: that spares passes over gradients.
        label_smoothing: ε.
        shares: Number of shares of the vocabulary that nothing hinders from being worked on at
            once. Cut by positions, each share would have a gradient as large as the matrix.

    Returns:
        The sum of the weighted losses, a float32 scalar; its gradients with respect to states and
        matrix, each in the dtype of its own; and `TokenPredictions` of shape `(N,)`. None of them
        is differentiable any further.
    """
    states, matrix = tf.stop_gradient(states), tf.stop_gradient(matrix)
    states32, factor = tf.cast(states, tf.float32), tf.cast(matrix, states.dtype)
    weighted = weights[:, tf.newaxis] * states32
    # A state of zeros has the same logit for every id. So with one more of them, the mean of the
    # rows is what its softmax gives, and the smoothing's gradient what its weight adds to each row.
    of_all = -label_smoothing * tf.reduce_sum(weighted, axis=0, keepdims=True)
    predictions, of_softmax, of_matrix = _softmax_terms(
        tf.pad(states, [[0, 1], [0, 0]]),
        factor,
        tf.pad(labels, [[0, 1]]),
        tf.concat([weighted, of_all], axis=0),
        shares,
    )
    predictions = TokenPredictions(*(x[:-1] for x in predictions))
    of_labels = tf.cast(tf.gather(factor, labels), tf.float32)
    # What a state is pulled towards: the row of its label, mixed with the mean of all rows.
    pull = (1 - label_smoothing) * of_labels + label_smoothing * of_softmax[-1]
    of_states = weights[:, tf.newaxis] * (of_softmax[:-1] - pull)
    rows, of_rows = labels[:, tf.newaxis], (1 - label_smoothing) * weighted
    of_matrix = tf.tensor_scatter_nd_sub(of_matrix, rows, of_rows)
    losses = tf.reduce_sum(states32 * (of_labels - pull), axis=1) - predictions.log_probs
    gradients = tf.cast(of_states, states.dtype), tf.cast(of_matrix, matrix.dtype)
    return tf.reduce_sum(weights * losses), gradients, predictions


def _softmax_terms(states, matrix, labels, weighted, shares):
    """Predictions; the softmaxes' products with the matrix, float32; theirs with `weighted`."""
    count = tf.shape(states)[0]
    shares = min(shares, matrix.shape[0])
    parts = -(-count // (shares * PART))
    size = -(-count // parts)  # of equal parts, so that little is padding
    ends = [matrix.shape[0] * share // shares for share in range(shares + 1)]

    def cut(x):
        x = tf.pad(x, [[0, parts * size - count], *[[0, 0]] * (len(x.shape) - 1)])
        return tf.reshape(x, tf.concat([[parts, size], tf.shape(x)[1:]], axis=0))

    states, labels, weighted = cut(states), cut(labels), cut(weighted)

    def work_off(part, results, of_shares=None):
        some = [
            _Share(states[part], matrix[start:end], labels[part] - start)
            for start, end in itertools.pairwise(ends)
        ]
        highest = tf.reduce_max([share.highest for share in some], axis=0)
        of_label = tf.reduce_max([share.of_label for share in some], axis=0)
        # Logarithms of what the exponentials in each share, and in all of them, sum up to.
        sums = [share.highest - highest + share.log_sum for share in some]
        log_sum = tf.reduce_logsumexp(sums, axis=0)
        chances = [tf.exp(own - log_sum)[:, tf.newaxis] for own in sums]

        pairs = list(zip(some, chances, strict=True))
        of_softmax = tf.add_n([chance * share.of_softmax() for share, chance in pairs])
        own = [share.of_matrix(chance * weighted[part]) for share, chance in pairs]
        if of_shares is not None:
            own = [a + b for a, b in zip(of_shares, own, strict=True)]
        new = (of_label - highest - log_sum, of_label >= highest, of_softmax)
        results = [array.write(part, x) for array, x in zip(results, new, strict=True)]
        return part + 1, results, own

    empty = [tf.TensorArray(dtype, parts) for dtype in (tf.float32, tf.bool, tf.float32)]
    # One part at a time, else the memory of all of them would be taken at once; and the first one
    # before the loop, which would have to start from zeros.
    _, results, of_shares = tf.while_loop(
        lambda part, *_: part < parts,
        work_off,
        work_off(tf.constant(0), empty),
        parallel_iterations=1,
    )
    log_probs, correct, of_softmax = (array.concat()[:count] for array in results)
    of_matrix = of_shares[0] if shares == 1 else tf.concat(of_shares, axis=0)
    return TokenPredictions(log_probs, correct), of_softmax, of_matrix


class _Share:
    """The softmax of some positions over a share of the vocabulary only.

    Attributes:
        highest: The highest logit of a position, float32 `(C,)`.
        log_sum: The logarithm of the sum of the exponentials of the logits less the highest.
        of_label: The logit of the label; lower than any where the share does not have it.
    """

    def __init__(self, states, matrix, labels):
        self._matrix = matrix
        logits = tf.cast(tf.matmul(states, matrix, transpose_b=True), tf.float32)  # (C, V')
        softmax = tf.nn.softmax(logits)
        self._softmax = tf.cast(softmax, matrix.dtype)
        self.highest = tf.reduce_max(logits, axis=-1)
        self.log_sum = -tf.math.log(tf.reduce_max(softmax, axis=-1))
        here = (labels >= 0) & (labels < matrix.shape[0])
        of_label = tf.gather(logits, tf.where(here, labels, 0), batch_dims=1)
        self.of_label = tf.where(here, of_label, logits.dtype.min)

    def of_softmax(self):
        """The softmax's product with the matrix, float32 `(C, D)`."""
        return tf.cast(tf.matmul(self._softmax, self._matrix), tf.float32)

    def of_matrix(self, weighted):
        """The softmax's product with something `(C, D)`, float32 `(V', D)`."""
        weighted = tf.cast(weighted, self._matrix.dtype)
        return tf.cast(tf.matmul(self._softmax, weighted, transpose_a=True), tf.float32)
