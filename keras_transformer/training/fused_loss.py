"""The fused loss, without the logits of a whole batch, and R-Drop.

Shapes: B batch, T target length, D width, V vocabulary.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.kernels.tensorflow.fused_cross_entropy import (
    TokenPredictions,
    fused_cross_entropy,
)
from keras_transformer.training.labels import read_labels
from keras_transformer.training.losses import SmoothedCrossEntropy, TargetTokens, TokenMetric
from keras_transformer.training.slices import Gradient, reason_against_slices
from keras_transformer.utils import Nested, Tensor


def reason_for_logits(
    model: Any, sample_weight: Tensor | None, metrics: list[keras.metrics.Metric]
) -> str | None:
    """Returns why the loss of a model needs logits, as part of a sentence; None if it does not.

    Args:
        model: A compiled `TokenTrainer`.
        sample_weight: Weights of the batch.
        metrics: The metrics that were passed to `compile`.
    """
    kind = type(model)
    if kind.softmax_inputs_of is None or kind.softmax_inputs_of is not kind.call:
        return f"{kind.__name__}.softmax_inputs_of is not its call"
    quantized = [layer.name for layer in model.layers if layer.quantization_mode]
    if quantized:  # its output is not a product with its kernel
        return f"{quantized[0]} is quantized"
    if sample_weight is not None:
        return "the batches have sample weights"
    if type(model.loss) is not SmoothedCrossEntropy:
        return "the loss is not SmoothedCrossEntropy"
    if reason := reason_against_slices(model):
        return reason
    if model._compile_loss._user_loss_weights is not None:
        return "there are loss_weights"
    if not all(map(is_per_token, metrics)):
        return "a metric needs logits"
    if kind.compute_metrics is not keras.Model.compute_metrics:
        return f"{kind.__name__} overrides compute_metrics"
    return None


def is_per_token(metric: keras.metrics.Metric) -> bool:
    """Returns whether a metric ignores padding and needs no logits."""
    return isinstance(metric, (TokenMetric, TargetTokens))


def repeat_batch(x: Nested, passes: int) -> Nested:
    """Repeats a batch as a whole, for passes through different dropout masks."""
    if passes == 1:
        return x
    return tf.nest.map_structure(lambda x: x if x is None else tf.concat([x] * passes, axis=0), x)


def rdrop_term(y: Tensor, logits: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Computes R-Drop's term of the loss over α from logits (arXiv:2106.14448, half of equation 4).

    Args:
        y: Labels `(B, T)`.
        logits: Float tensor `(2·B, T, V)`, those of the second pass after those of the first.
        sample_weight: Weights of shape `(B,)` or `(B, T)`, or None.

    Returns:
        `¼·(KL(p‖q) + KL(q‖p))`, the mean over the target tokens, a float32 scalar.
    """
    log_p, log_q = tf.split(tf.nn.log_softmax(tf.cast(logits, tf.float32)), 2)
    _, weights = read_labels(y, log_p, logits.shape[-1], sample_weight)
    values = tf.reduce_sum((tf.exp(log_p) - tf.exp(log_q)) * (log_p - log_q), axis=-1) / 4
    return tf.math.divide_no_nan(tf.reduce_sum(weights * values), tf.reduce_sum(weights))


def fused_gradients(
    model: Any, x: Nested, y: Tensor, share: Tensor
) -> tuple[Tensor, TokenPredictions, list[list[Gradient]]]:
    """Computes loss and gradients without the logits of the whole batch (`fused_cross_entropy`).

    Args:
        model: A compiled `TokenTrainer` that has `softmax_inputs`.
        x, y: A batch.
        share: The weight of the mean over these target tokens, a float32 scalar.

    Returns:
        The mean loss, `TokenPredictions` `(B, T)`, and the gradients of the trainable variables by
        three paths: through states and penalties, the softmax's matrix, and the labels' rows.
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
