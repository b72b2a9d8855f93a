"""Softmax and smoothed cross-entropy in one, without the logits of a whole batch.

Shapes: N positions, C positions of a part, D width, V vocabulary.
"""

import typing

import tensorflow as tf

# Most positions worked off at a time: enough for a matrix product at full speed, and for the
# gradient of the matrix, added up once per part, not to count; few enough for a processor's cache.
PART = 1024


class TokenPredictions(typing.NamedTuple):
    """What metrics need to know about logits of shape `(..., V)`."""

    log_probs: tf.Tensor  # float32 (...), natural log-probability of the label
    correct: tf.Tensor  # bool (...), whether no id is more probable than the label


def fused_cross_entropy(states, matrix, labels, weights, label_smoothing):
    """What `SmoothedCrossEntropy` is of the logits `states · matrixᵀ`, summed instead of averaged.

    Gradients are computed together with the loss, part by part, so that the logits, by far the
    largest tensor of a training step, exist for a part at a time and are read as seldom as can be.
    With p the softmax, w the weights, y the labels, X the states and E the matrix:
    `dL/dX = w·(p E − (1 − ε) E[y] − ε mean(E))`, and `dL/dE` likewise: only the terms with p
    are as wide as the vocabulary.

    Args:
        states: Float tensor `(N, D)`.
        matrix: Float tensor `(V, D)` of the same dtype.
        labels: int32 `(N,)`.
        weights: float32 `(N,)`, no gradients; 0 for padding.
        label_smoothing: ε.

    Returns:
        The sum of the weighted losses, a float32 scalar, and `TokenPredictions` of shape `(N,)`,
        through which no gradients flow.
    """

    @tf.custom_gradient
    def loss_of(states, matrix):
        log_probs, correct, of_states, of_matrix = _softmax_terms(states, matrix, labels, weights)
        states32, matrix32 = tf.cast(states, tf.float32), tf.cast(matrix, tf.float32)
        mean = tf.reduce_mean(matrix32, axis=0)
        # What the label is pulled towards: its own row, mixed with the mean of all rows.
        pull = (1 - label_smoothing) * tf.gather(matrix32, labels) + label_smoothing * mean
        label_logits = tf.reduce_sum(states32 * tf.gather(matrix32, labels), axis=1)
        losses = label_logits - log_probs - tf.reduce_sum(states32 * pull, axis=1)

        weighted = weights[:, tf.newaxis] * states32
        of_states -= weights[:, tf.newaxis] * pull
        rows = tf.cast(tf.shape(matrix)[0], tf.float32)
        of_matrix -= label_smoothing / rows * tf.reduce_sum(weighted, axis=0)
        of_matrix = tf.tensor_scatter_nd_sub(
            of_matrix, labels[:, tf.newaxis], (1 - label_smoothing) * weighted
        )

        def gradients(of_loss, *_):
            return tuple(
                tf.cast(of_loss * gradient, dtype)
                for gradient, dtype in ((of_states, states.dtype), (of_matrix, matrix.dtype))
            )

        return (tf.reduce_sum(weights * losses), log_probs, correct), gradients

    loss, log_probs, correct = loss_of(states, matrix)
    return loss, TokenPredictions(tf.stop_gradient(log_probs), correct)


def _softmax_terms(states, matrix, labels, weights):
    """Log-probabilities, hits, and the terms of the gradients that hold the softmax."""
    count = tf.shape(states)[0]
    parts = tf.maximum(1, -(-count // PART))  # one of padding where a replica has no sentence
    size = tf.maximum(1, -(-count // parts))  # of equal parts, so that little is padding

    def cut(x):
        x = tf.pad(x, [[0, parts * size - count], *[[0, 0]] * (len(x.shape) - 1)])
        return tf.reshape(x, tf.concat([[parts, size], tf.shape(x)[1:]], axis=0))

    states, labels, weights = cut(states), cut(labels), cut(weights)

    def work_off(part, results, of_matrix):
        own = states[part]
        logits = tf.cast(tf.matmul(own, matrix, transpose_b=True), tf.float32)  # (C, V)
        softmax = tf.nn.softmax(logits)
        of_label = tf.gather(softmax, labels[part], batch_dims=1)
        # The softmax's logarithm, unless one of them is too small for a float to hold it exactly.
        log_probs = tf.cond(
            tf.reduce_all(of_label > 1e-30),
            lambda: tf.math.log(of_label),
            lambda: tf.gather(tf.nn.log_softmax(logits), labels[part], batch_dims=1),
        )
        correct = of_label >= tf.reduce_max(softmax, axis=-1)  # cheaper than looking for argmax

        weight = weights[part][:, tf.newaxis]
        softmax = tf.cast(softmax, own.dtype)
        of_states = weight * tf.cast(tf.matmul(softmax, matrix), tf.float32)
        weighted = own * tf.cast(weight, own.dtype)
        of_matrix += tf.cast(tf.matmul(weighted, softmax, transpose_a=True), tf.float32)  # (D, V)
        new = (log_probs, correct, of_states)
        return part + 1, [a.write(part, x) for a, x in zip(results, new, strict=True)], of_matrix

    empty = [tf.TensorArray(dtype, parts) for dtype in (tf.float32, tf.bool, tf.float32)]
    zeros = tf.zeros(matrix.shape[::-1], tf.float32)
    # One part at a time, else the memory of all of them would be taken at once.
    _, results, of_matrix = tf.while_loop(
        lambda part, *_: part < parts,
        work_off,
        (tf.constant(0), empty, zeros),
        parallel_iterations=1,
    )
    log_probs, correct, of_states = (array.concat()[:count] for array in results)
    return log_probs, correct, of_states, tf.transpose(of_matrix)
