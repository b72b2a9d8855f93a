"""One training step under a tf.distribute strategy, normalised by the tokens of all replicas."""

import keras
import tensorflow as tf

from keras_transformer.special_ids import PAD


class TokenTrainer:
    """What Keras' `fit` lacks for sentences of different lengths: mixed into `Transformer`.

    Keras averages the mean losses of the replicas, so a replica with few target tokens counts as
    much as one with many, and its progress bar weights batches by their rows. Here gradients and
    reported losses are means over the target tokens of all replicas: how a batch is cut into
    replicas, padded or ordered changes neither.

    Expects batches `(x, y)` or `(x, y, sample_weight)` with ids `y` of shape (B, T), padded with
    PAD; `sample_weight` is (B,) or (B, T).
    """

    def train_step(self, data):
        """Learns from one batch; called by `fit` on each replica."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        tokens = _count_tokens(y, sample_weight)
        context = tf.distribute.get_replica_context()
        # Keras scales a mean by 1/replicas because gradients are summed over the replicas.
        replicas = tf.cast(context.num_replicas_in_sync, tf.float32)
        all_tokens = context.all_reduce(tf.distribute.ReduceOp.SUM, tokens)
        share = replicas * tf.math.divide_no_nan(tokens, all_tokens)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x, y, logits, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._report(x, y, logits, sample_weight, loss * replicas, tokens)

    def test_step(self, data):
        """Scores one batch; called by `evaluate` and by `fit`'s validation."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        logits = self(x, training=False)
        loss = self.compute_loss(x, y, logits, sample_weight, training=False) * replicas
        return self._report(x, y, logits, sample_weight, loss, _count_tokens(y, sample_weight))

    def _report(self, x, y, logits, sample_weight, loss, tokens):
        """Updates the running means that the progress bar shows."""
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss, sample_weight=tokens)
        return self.compute_metrics(x, y, logits, sample_weight)


def _count_tokens(y, sample_weight):
    """The number of target tokens of this replica, weighted: a float32 scalar."""
    tokens = tf.cast(tf.not_equal(y, PAD), tf.float32)
    if sample_weight is not None:
        weight = tf.cast(sample_weight, tf.float32)
        tokens *= weight if weight.shape.rank == 2 else weight[:, tf.newaxis]
    return tf.reduce_sum(tokens)
