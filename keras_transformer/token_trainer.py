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
            gradients = self._gradients(batch, all_tokens)
        else:
            gradients = self._accumulate(batch, all_tokens)
        if self.clip_norm is not None:
            gradients = self._clip(gradients, context)
        if self.parallel_parts > 1:
            # All updates at once, in the end: the last one to be ready is that of the embeddings,
            # the largest, and cores would wait for the one that works on it.
            gradients = tf.tuple(gradients)
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

    def _gradients(self, batch, all_tokens):
        """Gradients of a batch, or of a part, as its share of the mean over `all_tokens`."""
        parts = [keras.utils.unpack_x_y_sample_weight(part) for part in self._parallel(batch)]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(tuple(batch))
        if self._can_fuse(sample_weight):
            return self._fused_gradients(x, y, parts, all_tokens)
        gradients = [self._plain_gradients(*part, all_tokens) for part in parts]
        return [_sum_of_parts(some) for some in zip(*gradients, strict=True)]

    def _plain_gradients(self, x, y, sample_weight, all_tokens):
        """Those of a part, by way of its logits."""
        share = tf.math.divide_no_nan(_count_tokens(y, sample_weight), all_tokens)
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = self.compute_loss(x, y, logits, sample_weight, training=True)
            # Keras scales a mean by 1/replicas because gradients are summed over the replicas.
            loss *= tf.distribute.get_replica_context().num_replicas_in_sync
            scaled = self.optimizer.scale_loss(loss * share)
        self._report(x, y, logits, sample_weight, loss)
        return tape.gradient(scaled, self.trainable_variables)

    def _fused_gradients(self, x, y, parts, all_tokens):
        """Those of all parts, without the logits of a whole batch."""
        tapes, outputs = [], []
        for part_x, part_y, _ in parts:
            with tf.GradientTape(persistent=True) as tape:
                states, matrix = self.softmax_inputs(part_x, training=True)
                share = tf.math.divide_no_nan(_count_tokens(part_y), all_tokens)
                penalty = tf.add_n([tf.constant(0.0), *self.losses]) * share
            tapes.append(tape)
            outputs.append((states, penalty))

        labels = tf.reshape(tf.cast(y, tf.int32), [-1])
        tokens = tf.cast(tf.not_equal(labels, PAD), tf.float32)
        scale = self.optimizer.scale_loss(tf.constant(1.0))
        loss, (of_states, of_matrix), predictions = fused_cross_entropy(
            tf.concat([tf.reshape(x, [-1, x.shape[-1]]) for x, _ in outputs], axis=0),
            matrix,
            labels,
            tokens * tf.math.divide_no_nan(scale, all_tokens),
            self.loss.label_smoothing,
            shares=len(parts),
        )
        share = tf.math.divide_no_nan(tf.reduce_sum(tokens), all_tokens)
        loss = tf.add_n([loss / scale, *(penalty for _, penalty in outputs)])
        predictions = TokenPredictions(*(tf.reshape(p, tf.shape(y)) for p in predictions))
        self._report(x, y, predictions, None, tf.math.divide_no_nan(loss, share))

        of_states = tf.split(of_states, [tf.size(part_y) for _, part_y, _ in parts])
        gradients = []
        for tape, output, of_part in zip(tapes, outputs, of_states, strict=True):
            before = [tf.reshape(of_part, tf.shape(output[0])), scale]
            gradients.append(tape.gradient(output, self.trainable_variables, before))
        # A part has its own graph, but the matrix is the same for all.
        of_matrix = tape.gradient(matrix, self.trainable_variables, of_matrix)
        gradients = [_sum_of_parts(some) for some in zip(*gradients, strict=True)]
        return [_sum(*pair) for pair in zip(gradients, of_matrix, strict=True)]

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
            gradients = [tf.convert_to_tensor(g) for g in self._gradients(own, all_tokens)]
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


def _sum(gradient, other):
    """The sum of a variable's gradients on two ways, the second one dense; None where none leads.

    TensorFlow would sum up a dense gradient and one that a lookup left in a tensor of zeros.
    """
    if gradient is None or other is None:
        return gradient if other is None else other
    if isinstance(gradient, tf.IndexedSlices):
        rows = gradient.indices[:, tf.newaxis]
        return tf.tensor_scatter_nd_add(other, rows, gradient.values)
    return gradient + other


def _sum_of_parts(gradients):
    """The sum of a variable's gradients in the parts of a batch, alike in kind."""
    first = gradients[0]
    if len(gradients) == 1 or first is None:
        return first
    if isinstance(first, tf.IndexedSlices):  # what is left as it is costs nothing
        values, rows = (
            tf.concat([getattr(gradient, name) for gradient in gradients], axis=0)
            for name in ("values", "indices")
        )
        return tf.IndexedSlices(values, rows, first.dense_shape)
    return tf.add_n(gradients)
