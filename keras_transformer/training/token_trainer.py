"""One training step under a tf.distribute strategy, normalised by the tokens of all replicas."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions
from keras_transformer.training.checked_fit import CheckedFit
from keras_transformer.training.first_step import FirstStep, release_graphs
from keras_transformer.training.gradients import (
    averages_as_keras,
    clip_together,
    count_tokens,
    counts_tokens,
    fused_gradients,
    plain_gradients,
    sum_gradients,
    sum_over_replicas,
)
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import TargetTokens, TokenMetric
from keras_transformer.training.microbatches import accumulate, split
from keras_transformer.training.names import refuse_probabilities, replace_names
from keras_transformer.training.token_weights import SCOPE
from keras_transformer.training.workers import SharedFit
from keras_transformer.typing import Config, Nested, Tensor

LEAST_LOSS_SCALE = 1.0  # of float16: below it, no scale makes gradients finite


class TokenTrainer(SharedFit, CheckedFit, FirstStep):
    """Gives `fit` what it lacks for sentences of different lengths: mixed into `Transformer`.

    Keras averages the mean losses of the replicas, so a replica with few target tokens counts as
    much as one with many, and its progress bar weights batches by their rows. Here gradients and
    reported losses are means over the target tokens of all replicas: how a batch is cut into
    replicas or micro-batches, padded or ordered changes neither. Penalties (`model.losses`) count
    once an update; those of activities are means over rows, so parts of a batch weigh them by their
    target tokens.

    Expects batches `(x, y)` or `(x, y, sample_weight)`; `sample_weight` is (B,) or (B, T). With
    several outputs, `y` holds the labels of each, and the target tokens of all of them count
    together. For `SmoothedCrossEntropy`, `y` are ids (B, T) of any integer type, or whole numbers
    of a float type, one for each position of the outputs (B, T, V). PAD and negative labels are
    ignored. A label that is V or above raises `ValueError`; where a graph cannot raise (XLA, GPUs),
    loss, metrics and gradients are NaN. Another loss must be one of Keras with a reduction to a
    mean where batches are cut into micro-batches: what others average over is not known.

    A model that has a method `softmax_inputs(x, training)`, returning tensors (B, T, D) and (V, D)
    whose product, the second one transposed, are the logits of its `call`, trains with
    `SmoothedCrossEntropy` without ever holding the logits of a whole batch (the fused loss). It
    says so by an attribute of the class, `softmax_inputs_of = call`: a subclass with another `call`
    then goes through its logits until it says so of that one.

    Attributes:
        parallel_microbatches: Number of micro-batches that are computed at the same time, for a
            processor whose cores each do an operation of their own (`kt.work_apart`). It belongs to
            the machine and is not saved.

    Example:

    >>> class Tagger(TokenTrainer, keras.Model):
    ...     def __init__(self, vocabulary_size):
    ...         super().__init__()
    ...         self.embedding = PositionalEmbedding(vocabulary_size, d_model=16)
    ...
    ...     def call(self, ids):
    ...         return self.embedding.logits(self.embedding(ids))
    >>> model = Tagger(vocabulary_size=50)
    >>> model.compile("adam", SmoothedCrossEntropy(), accumulation_steps=2, jit_compile=False)
    >>> ids = np.array([[7, 8, 9], [8, 9, 0]])
    >>> model.fit(ids, ids, verbose=0).epoch
    [0]
    """

    parallel_microbatches: int = 1
    # The `call` whose logits `softmax_inputs` are those of.
    softmax_inputs_of: Callable[..., Nested] | None = None
    # Set by `compile`.
    clip_norm: float | None = None
    accumulation_steps: int = 1
    fused_loss: str | bool = "auto"

    def compile(
        self,
        *args: Any,
        clip_norm: float | None = None,
        accumulation_steps: int = 1,
        fused_loss: str | bool = "auto",
        **kwargs: Any,
    ) -> None:
        """Configures the training: as `keras.Model.compile`, and by three more arguments.

        Args:
            *args, **kwargs: Those of `keras.Model.compile`; loss and metrics also by the names
                "smoothed_cross_entropy", "masked_accuracy", "perplexity" and "target_tokens".
            clip_norm: Largest norm of all gradients together, None for any. The optimizer's own
                `global_clipnorm` would clip each replica's share by itself.
            accumulation_steps: Number of micro-batches that a batch is cut into, one after the
                other, before its one update: the update of the whole batch in the memory of one.
                Keras' own `gradient_accumulation_steps` fails under a strategy.
            fused_loss: `"auto"`, whether the loss is computed without the logits of a whole batch
                depends on whether anything else looks at them; `True`, it has to be; or `False`.

        Raises:
            ValueError: If an argument is out of its range; if a loss or metric would take logits
                for probabilities.
        """
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"clip_norm must be above 0, received {clip_norm}.")
        if accumulation_steps < 1:
            raise ValueError(
                f"accumulation_steps must be at least 1, received {accumulation_steps}."
            )
        if fused_loss not in ("auto", True, False):
            raise ValueError(f'fused_loss must be "auto", True or False, received {fused_loss!r}.')
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and kwargs.get("steps_per_execution", 1) != 1:
            raise ValueError(
                f"steps_per_execution={kwargs['steps_per_execution']} cannot be done on {replicas} "
                "replicas, where Keras fails at it: leave it out."
            )
        args, kwargs = replace_names((args, kwargs))
        if type(self).softmax_inputs_of is type(self).call:
            refuse_probabilities((args, kwargs))
        super().compile(*args, **kwargs)
        release_graphs(self.optimizer)
        self.clip_norm = clip_norm
        self.accumulation_steps = accumulation_steps
        self.fused_loss = fused_loss

    def get_compile_config(self) -> Config | None:
        config = super().get_compile_config()
        return config and config | {
            "clip_norm": self.clip_norm,
            "accumulation_steps": self.accumulation_steps,
            "fused_loss": self.fused_loss,
        }

    def compile_from_config(self, config: Config) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def train_step(self, data: Nested) -> dict[str, Tensor]:
        """Learns from one batch; called by `fit` on each replica."""
        batch = self._batch(data)
        (all_tokens,) = sum_over_replicas([count_tokens(self.loss, *batch[1:])])
        gradients = self._gradients(batch, all_tokens)
        self._report_divergence(gradients)
        if self.clip_norm is not None:
            # float16's gradients are scaled
            gradients = clip_together(gradients, self.optimizer.scale_loss(self.clip_norm))
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.get_metrics_result()

    def test_step(self, data: Nested) -> dict[str, Tensor]:
        """Scores one batch; called by `evaluate` and by `fit`'s validation."""
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        batch = self._batch(data)
        for microbatch in split(batch, self.parallel_microbatches):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(microbatch)
            logits = self(x, training=False)
            loss = self.compute_loss(x, y, logits, sample_weight, training=False) * replicas
            logs = self._report(x, y, logits, sample_weight, loss)
        return logs

    def _gradients(self, batch, all_tokens):
        """The gradients of a batch, as its share of the mean over `all_tokens`."""

        def of_parallel(batch):
            gradients = []
            for microbatch in split(batch, self.parallel_microbatches):
                gradients += self._microbatch_gradients(microbatch, all_tokens)
            return [sum_gradients(some) for some in zip(*gradients, strict=True)]

        if self.accumulation_steps == 1:
            return of_parallel(batch)
        zeros = [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]
        return accumulate(
            lambda batch: [tf.convert_to_tensor(gradient) for gradient in of_parallel(batch)],
            batch,
            self.accumulation_steps,
            zeros,
            fixed=bool(self.jit_compile),
        )

    def _microbatch_gradients(self, microbatch, all_tokens):
        """The gradients of a micro-batch by each way that leads to the variables."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(microbatch)
        compute = fused_gradients if self._fuses(sample_weight) else plain_gradients
        share = tf.math.divide_no_nan(count_tokens(self.loss, y, sample_weight), all_tokens)
        loss, predictions, gradients = compute(self, x, y, sample_weight, share)
        self._report(x, y, predictions, sample_weight, loss, skips=self._scales_loss())
        return gradients

    def _report_divergence(self, gradients):
        """Makes the loss that is reported NaN where the gradient norm is not finite.

        With a loss scale, only once that is at its floor: until then the step is skipped.
        """
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        norms = [tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in values if g is not None]
        finite = tf.math.is_finite(tf.add_n([tf.zeros([]), *norms]))
        if self._scales_loss():
            finite |= self.optimizer.scale_loss(1.0) > LEAST_LOSS_SCALE
        self._reported_loss().total.assign_add(tf.where(finite, 0.0, math.nan))

    def _scales_loss(self):
        return isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)

    def _reported_loss(self):
        return next(metric for metric in self.metrics if metric.name == "loss")

    def _fuses(self, sample_weight):
        """Decides whether the fused loss applies."""
        if self.fused_loss is False:
            return False
        hindrance = self._what_needs_logits(sample_weight)
        if hindrance and self.fused_loss is True:
            raise ValueError(f'fused_loss=True cannot be done: {hindrance}; try "auto".')
        # Metrics that `FirstStep` could not build ahead are built by logits, in a first trace.
        return not hindrance and all(getattr(group, "built", True) for group in self.metrics)

    def _what_needs_logits(self, sample_weight):
        """Names what hinders the fused loss, as part of a sentence; None where nothing does."""
        kind = type(self)
        if kind.softmax_inputs_of is None or kind.softmax_inputs_of is not kind.call:
            return f"{kind.__name__}.call is not the softmax_inputs_of that class"
        quantized = [layer.name for layer in self.layers if layer.quantization_mode]
        if quantized:  # it computes something else than a product with its kernel
            return f"{quantized[0]} is quantized"
        if sample_weight is not None:
            return "the batches have sample weights"
        if type(self.loss) is not SmoothedCrossEntropy:
            return "the loss is no SmoothedCrossEntropy"
        if not all(isinstance(m, (TokenMetric, TargetTokens)) for m in self._compiled_metrics()):
            return "a metric looks at logits"
        own = kind.compute_loss is not keras.Model.compute_loss
        if own or kind.compute_metrics is not keras.Model.compute_metrics:
            return f"{kind.__name__} has compute_loss or compute_metrics of its own"
        return None

    def _compiled_metrics(self):
        """The metrics that the user gave to `compile`."""
        return [m for group in self.metrics for m in getattr(group, "metrics", [])]

    def _report(self, x, y, predictions, sample_weight, loss, skips=False):
        """Updates the running means that the progress bar shows."""
        tokens = count_tokens(self.loss, y, sample_weight)
        if skips:  # the optimizer skips a step whose loss is not finite: it does not count
            finite = tf.math.is_finite(loss)
            loss, tokens = tf.where(finite, loss, 0.0), tf.where(finite, tokens, 0.0)
        self._reported_loss().update_state(loss, sample_weight=tokens)
        if isinstance(predictions, TokenPredictions):
            for metric in self._compiled_metrics():
                metric.update_state(y, predictions)
            return self.get_metrics_result()
        return self.compute_metrics(x, y, predictions, sample_weight)

    def _batch(self, data):
        """(x, y) or (x, y, sample_weight), with y; and checks that slices of it can be averaged."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if y is None:
            raise ValueError(
                "There is nothing to learn from: a batch holds inputs without labels, expected "
                "((source, target_in), target_out), as make_dataset makes them."
            )
        if self.accumulation_steps * self.parallel_microbatches > 1:
            self._check_slices()
        with tf.name_scope(SCOPE):
            x = tf.nest.map_structure(_as_rows, x) if hasattr(self, "input_signature") else x
            y = tf.nest.map_structure(_as_rows, y) if counts_tokens(self.loss) else y
        return (x, y) if sample_weight is None else (x, y, sample_weight)

    def _check_slices(self):
        """Refuses losses of which it cannot be known what they are averaged over."""
        for loss in tf.nest.flatten(self.loss):
            if not counts_tokens(loss) and not averages_as_keras(loss):
                name = getattr(loss, "name", getattr(loss, "__name__", loss))
                raise ValueError(
                    f"With accumulation_steps={self.accumulation_steps} and parallel_microbatches="
                    f"{self.parallel_microbatches}, the mean of the slices of a batch must be that "
                    f"of the whole, which is not known of the loss {name}: use "
                    "SmoothedCrossEntropy, or a loss of Keras with a reduction to a mean."
                )


def _as_rows(ids):
    """Ids whose rank is unknown, as `Dataset.from_generator` makes them by `output_types` alone."""
    unknown = tf.is_tensor(ids) and ids.shape.rank is None
    return tf.ensure_shape(ids, (None, None)) if unknown else ids
