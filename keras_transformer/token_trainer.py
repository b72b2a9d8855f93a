"""One training step under a tf.distribute strategy, normalised by the tokens of all replicas."""

import keras
import tensorflow as tf

from keras_transformer.fused_cross_entropy import TokenPredictions, fused_cross_entropy
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import TargetTokens, TokenMetric
from keras_transformer.special_ids import PAD


class TokenTrainer:
    """What Keras' `fit` lacks for sentences of different lengths: mixed into `Transformer`.

    Keras averages the mean losses of the replicas, so a replica with few target tokens counts as
    much as one with many, and its progress bar weights batches by their rows. Here gradients and
    reported losses are means over the target tokens of all replicas: how a batch is cut into
    replicas or parts, padded or ordered changes neither.

    Expects batches `(x, y)` or `(x, y, sample_weight)` with ids `y` of shape (B, T), padded with
    PAD; `sample_weight` is (B,) or (B, T).

    A model that has a method `softmax_inputs(x, training)` beside its `call`, returning tensors
    (B, T, D) and (V, D) whose product, the second one transposed, are the logits, trains with
    `SmoothedCrossEntropy` without ever holding the logits of a whole batch.

    Attributes:
        accumulation_steps: Number of parts that a batch is worked off in, one after the other,
            before its one update: the update of the whole batch in the memory of a part. Keras'
            own `gradient_accumulation_steps` fails under a strategy.
        parallel_parts: Number of parts that such a part, or the batch, is cut into and that are
            worked off at the same time, for a processor whose cores work apart (`cores.py`).
        clip_norm: Largest norm of all gradients together, None for any. The optimizer's own
            `global_clipnorm` would clip each replica's share by itself.
    """

    accumulation_steps = 1
    parallel_parts = 1
    clip_norm = None

    def train_step(self, data):
        """Learns from one batch; called by `fit` on each replica."""
        if not self.built:
            self.build()
        batch = [part for part in keras.utils.unpack_x_y_sample_weight(data) if part is not None]
        context = tf.distribute.get_replica_context()
        all_tokens = context.all_reduce(tf.distribute.ReduceOp.SUM, _count_tokens(*batch[1:]))
        if self.accumulation_steps == 1:
            gradients = self._parallel_gradients(batch, all_tokens)
        else:
            gradients = self._accumulate(batch, all_tokens)
        if self.clip_norm is not None:
            gradients = self._clip(gradients, context)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.get_metrics_result()

    def test_step(self, data):
        """Scores one batch; called by `evaluate` and by `fit`'s validation."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        batch = [part for part in keras.utils.unpack_x_y_sample_weight(data) if part is not None]
        for part in self._parallel(batch):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(part)
            logits = self(x, training=False)
            loss = self.compute_loss(x, y, logits, sample_weight, training=False) * replicas
            logs = self._report(x, y, logits, sample_weight, loss)
        return logs

    def _parallel(self, batch):
        """The parts of a batch, whole rows, that nothing hinders from being computed at once."""
        parts = self.parallel_parts
        if parts == 1:
            return [tuple(batch)]

        def cut(part):
            def rows(x):
                count = tf.shape(x)[0]
                return x[count * part // parts : count * (part + 1) // parts]

            return tuple(tf.nest.map_structure(rows, batch))

        return [cut(part) for part in range(parts)]

    def _parallel_gradients(self, batch, all_tokens):
        """The sums of the gradients of these parts."""
        parts = [self._gradients(part, all_tokens) for part in self._parallel(batch)]
        return [_sum(some) for some in zip(*sum(parts, []), strict=True)]

    def _gradients(self, batch, all_tokens):
        """Gradients of a batch, or of a part, as its share of the mean over `all_tokens`.

        One list for each way that leads to the variables; their sums are the gradients.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        work = self._fused_gradients if self._can_fuse(sample_weight) else self._plain_gradients
        share = tf.math.divide_no_nan(_count_tokens(y, sample_weight), all_tokens)
        loss, predictions, gradients = work(x, y, sample_weight, share)
        self._report(x, y, predictions, sample_weight, loss)
        return gradients

    def _plain_gradients(self, x, y, sample_weight, share):
        """The mean loss over the target tokens of this replica, the logits, and the gradients."""
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x, y, logits, sample_weight, training=True)
            # Keras scales a mean by 1/replicas because gradients are summed over the replicas.
            loss *= tf.distribute.get_replica_context().num_replicas_in_sync
            scaled = self.optimizer.scale_loss(loss * share)
        return loss, logits, [tape.gradient(scaled, self.trainable_variables)]

    def _fused_gradients(self, x, y, _, share):
        """The same without the logits of the whole batch."""
        with tf.GradientTape(persistent=True) as tape:
            states, matrix = self.softmax_inputs(x, training=True)
            labels = tf.reshape(tf.cast(y, tf.int32), [-1])
            rows = tf.gather(matrix, labels)
            penalties = self.losses
        tokens = tf.cast(tf.not_equal(labels, PAD), tf.float32)
        scale = self.optimizer.scale_loss(share)
        factor = tf.math.divide_no_nan(scale, tf.reduce_sum(tokens))
        loss, (of_states, of_matrix, of_rows), predictions = fused_cross_entropy(
            tf.reshape(states, [-1, states.shape[-1]]),
            matrix,
            labels,
            factor * tokens,
            self.loss.label_smoothing,
        )
        before = [tf.reshape(of_states, tf.shape(states)), *[scale] * len(penalties)]
        variables = self.trainable_variables
        sparse = tape.gradient(rows, variables, of_rows)
        if not any(isinstance(gradient, tf.IndexedSlices) for gradient in sparse):
            # The matrix is no variable but made from some: no row of theirs is one of its rows.
            of_matrix = tf.tensor_scatter_nd_add(of_matrix, labels[:, tf.newaxis], of_rows)
            sparse = [None] * len(variables)
        gradients = [
            tape.gradient([states, *penalties], variables, before),
            tape.gradient(matrix, variables, of_matrix),
            sparse,
        ]
        loss = tf.add_n([tf.math.divide_no_nan(loss, scale), *penalties])
        predictions = TokenPredictions(*(tf.reshape(p, tf.shape(y)) for p in predictions))
        return loss, predictions, gradients

    def _can_fuse(self, sample_weight):
        """Whether only our own loss and metrics look at the logits, and in our own way."""
        kind = type(self)

        def definer(name):
            return next((c for c in kind.__mro__ if name in vars(c)), None)

        return (
            sample_weight is None
            and type(self.loss) is SmoothedCrossEntropy
            and all(getattr(group, "built", True) for group in self.metrics)
            and all(isinstance(m, (TokenMetric, TargetTokens)) for m in self._compiled_metrics())
            and definer("softmax_inputs") is definer("call")
            and kind.compute_loss is keras.Model.compute_loss
            and kind.compute_metrics is keras.Model.compute_metrics
        )

    def _compiled_metrics(self):
        """What the user gave to `compile` as metrics."""
        return [m for group in self.metrics for m in getattr(group, "metrics", [])]

    def _accumulate(self, batch, all_tokens):
        """Sums the gradients of the parts of a batch, of one shape in a loop, as XLA needs it.

        Rows of padding fill the last part up.
        """
        parts = self.accumulation_steps

        def cut(x):
            missing = -tf.shape(x)[0] % parts
            x = tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)])
            return tf.reshape(x, tf.concat([[parts, -1], tf.shape(x)[1:]], axis=0))

        batch = tf.nest.map_structure(cut, batch)

        def add(part, sums):
            own = tf.nest.map_structure(lambda x: x[part], batch)
            gradients = [tf.convert_to_tensor(g) for g in self._parallel_gradients(own, all_tokens)]
            return part + 1, [a + b for a, b in zip(sums, gradients, strict=True)]

        zeros = [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]
        # One part at a time, else the memory of all of them would be taken at once.
        loop = dict(maximum_iterations=parts, parallel_iterations=1)
        return tf.while_loop(lambda part, _: part < parts, add, (tf.constant(0), zeros), **loop)[1]

    def _clip(self, gradients, context):
        """Scales the gradients of all replicas together down to `clip_norm`."""
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        norm = self.clip_norm * self.optimizer.scale_loss(1.0)  # float16's gradients are scaled
        gradients, _ = tf.clip_by_global_norm(gradients, norm)
        # The optimizer will sum them over the replicas once more.
        return [gradient / context.num_replicas_in_sync for gradient in gradients]

    def _report(self, x, y, predictions, sample_weight, loss):
        """Updates the running means that the progress bar shows."""
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss, sample_weight=_count_tokens(y, sample_weight))
        if isinstance(predictions, TokenPredictions):
            for metric in self._compiled_metrics():
                metric.update_state(y, predictions)
            return self.get_metrics_result()
        return self.compute_metrics(x, y, predictions, sample_weight)


def _count_tokens(y, sample_weight=None):
    """The number of target tokens of this replica, weighted: a float32 scalar."""
    tokens = tf.cast(tf.not_equal(y, PAD), tf.float32)
    if sample_weight is not None:
        weight = tf.cast(sample_weight, tf.float32)
        tokens *= weight if weight.shape.rank == 2 else weight[:, tf.newaxis]
    return tf.reduce_sum(tokens)


def _sum(gradients):
    """The sum of a variable's gradients of all parts and on all ways; None where none leads to it.

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
