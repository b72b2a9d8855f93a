"""The gradients of a batch's loss, through the logits or without those of the whole batch.

Shapes: B batch, T target length, D width, V vocabulary.
"""

from collections.abc import Iterable
from typing import TypeAlias

import keras
import tensorflow as tf

from keras_transformer.kernels.tensorflow.fused_cross_entropy import (
    TokenPredictions,
    fused_cross_entropy,
)
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.token_weights import read_labels, token_weights
from keras_transformer.typing import Nested, Tensor

# Of a variable: dense, of the rows that were looked up, or none at all.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def plain_gradients(
    model: keras.Model, x: Nested, y: Tensor, sample_weight: Tensor | None, share: Tensor
) -> tuple[Tensor, Tensor, list[list[Gradient]]]:
    """Computes loss and gradients through the logits, as Keras does.

    Args:
        model: A compiled `TokenTrainer`.
        x, y, sample_weight: A batch.
        share: What the mean over these target tokens counts for, a float32 scalar.

    Returns:
        The mean loss, the logits `(B, T, V)`, and a list of gradients, one for each way that leads
        to the trainable variables: here, one way.
    """
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = model.compute_loss(x, y, logits, sample_weight, training=True)
        # Keras scales a mean by 1/replicas because gradients are summed over the replicas.
        loss *= tf.distribute.get_replica_context().num_replicas_in_sync
        scaled = model.optimizer.scale_loss(loss * share)
    return loss, logits, [tape.gradient(scaled, model.trainable_variables)]


def fused_gradients(
    model: keras.Model, x: Nested, y: Tensor, _: None, share: Tensor
) -> tuple[Tensor, TokenPredictions, list[list[Gradient]]]:
    """Computes the same without the logits of the whole batch (`fused_cross_entropy`).

    Args:
        model, x, y, share: As `plain_gradients` has them; the model has `softmax_inputs`.

    Returns:
        As `plain_gradients` does, with `TokenPredictions` `(B, T)` for the logits, and gradients
        by three ways: through states and penalties, the softmax's matrix, and the labels' rows.
    """
    with tf.GradientTape(persistent=True) as tape:
        states, matrix = model.softmax_inputs(x, training=True)
        ids, weights = read_labels(y, states, matrix.shape[0])
        labels = tf.reshape(ids, [-1])
        rows = tf.gather(matrix, labels)
        penalties = model.losses
    scale = model.optimizer.scale_loss(share)
    weights *= tf.math.divide_no_nan(scale, tf.reduce_sum(weights))
    loss, (states_grad, matrix_grad, rows_grad), predictions = fused_cross_entropy(
        tf.reshape(states, [-1, states.shape[-1]]),
        matrix,
        labels,
        tf.reshape(weights, [-1]),
        model.loss.label_smoothing,
    )
    upstream = [tf.reshape(states_grad, tf.shape(states)), *[scale] * len(penalties)]
    variables = model.trainable_variables
    sparse = tape.gradient(rows, variables, rows_grad)
    if not any(isinstance(gradient, tf.IndexedSlices) for gradient in sparse):
        # The matrix is no variable but made from some: no row of theirs is one of its rows.
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


def sum_gradients(gradients: Iterable[Gradient]) -> Gradient:
    """Adds up a variable's gradients of all micro-batches and ways; None where none leads to it.

    TensorFlow would add up a dense gradient and what lookups left in a tensor of zeros.
    """
    gradients = [gradient for gradient in gradients if gradient is not None]
    dense = [gradient for gradient in gradients if not isinstance(gradient, tf.IndexedSlices)]
    sparse = [gradient for gradient in gradients if isinstance(gradient, tf.IndexedSlices)]
    if sparse:
        rows = tf.concat([gradient.indices for gradient in sparse], axis=0)
        values = tf.concat([gradient.values for gradient in sparse], axis=0)
        if not dense:  # what stays sparse costs nothing
            return tf.IndexedSlices(values, rows, sparse[0].dense_shape)
    if len(gradients) < 2:
        return gradients[0] if gradients else None
    total = tf.add_n(dense)
    return tf.tensor_scatter_nd_add(total, rows[:, tf.newaxis], values) if sparse else total


def clip_together(gradients: Iterable[Tensor], largest_norm: float | Tensor) -> list[Tensor]:
    """Scales the gradients of all replicas together down to a norm.

    Args:
        gradients: This replica's.
        largest_norm: Of all together.

    Returns:
        List of tensors; their sums over the replicas are the clipped gradients.
    """
    gradients = sum_over_replicas([tf.convert_to_tensor(gradient) for gradient in gradients])
    gradients, _ = tf.clip_by_global_norm(gradients, largest_norm)
    # The optimizer will sum them over the replicas once more.
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    return [gradient / replicas for gradient in gradients]


def sum_over_replicas(tensors: list[Tensor]) -> list[Tensor]:
    """Sums tensors over all replicas; the sums are not differentiable.

    `ReplicaContext.all_reduce` has a gradient, by a `tf.custom_gradient`. TensorFlow registers that
    with each graph for the life of the process, and with it keeps the graph and the model's weights
    (tensorflow#97697).

    Args:
        tensors: This replica's.

    Returns:
        The sums, a list in the same order.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    add = tf.distribute.ReduceOp.SUM
    if tf.__internal__.distribute.strategy_supports_no_merge_call():  # GPUs and XLA alone
        return context.all_reduce(add, tensors)

    def reduce(strategy, *distributed):
        return strategy.extended.batch_reduce_to(add, [(x, x) for x in distributed])

    return list(context.merge_call(reduce, args=tuple(tensors)))


def count_tokens(loss: Nested, y: Nested, sample_weight: Nested = None) -> Tensor:
    """Counts what the mean of a model's loss is over on this replica: a float32 scalar.

    Of `SmoothedCrossEntropy`, the target tokens, weighted; of Keras' losses, rows, or what
    `ignore_class` leaves. Of a model with several outputs, the sum over all of them.

    Args:
        loss: What `compile` was given.
        y, sample_weight: Of a batch.
    """
    losses, labels = tf.nest.flatten(loss), tf.nest.flatten(y)
    losses = losses if len(losses) == len(labels) else losses[:1] * len(labels)
    weights = [None] * len(labels) if sample_weight is None else tf.nest.flatten(sample_weight)
    return tf.add_n([_count(*of_one) for of_one in zip(losses, labels, weights, strict=True)])


def _count(loss, labels, sample_weight):
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
    """Tells whether a loss is a mean over target tokens."""
    return isinstance(loss, SmoothedCrossEntropy)


def averages_as_keras(loss: object) -> bool:
    """Tells whether a loss is a mean by a rule of Keras: over rows, or what it does not ignore."""
    if isinstance(loss, str):
        return True
    kind = loss if callable(loss) and not isinstance(loss, keras.losses.Loss) else type(loss)
    means = "sum_over_batch_size", "mean", "mean_with_sample_weight"
    own = getattr(keras.losses, getattr(kind, "__name__", ""), None) is kind
    return own and getattr(loss, "reduction", means[0]) in means
