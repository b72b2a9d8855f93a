"""A Keras model that trains on sentences: losses and gradients are means over target tokens."""

import math
import warnings
from typing import Any

import keras

from keras_transformer.kernels.backend import IS_TENSORFLOW, require_tensorflow
from keras_transformer.presets.options import ABOVE_0, NOT_NEGATIVE, check_sizes, check_value
from keras_transformer.training import keras_workarounds
from keras_transformer.training.losses import refuse_probabilities, token_weights
from keras_transformer.utils import Config, Nested, Path, Tensor

if IS_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions
    from keras_transformer.training.cluster import joined_cluster
    from keras_transformer.training.distribution import (
        WorkerWatch,
        broadcast_from_chief,
        distribute,
        is_multiworker,
    )
    from keras_transformer.training.gradients import (
        PER_TOKEN,
        accumulate,
        allows_fused_loss,
        averages_tokens,
        fused_gradients,
        rdrop_term,
        repeat_batch,
        split,
        sum_gradients,
    )

MIN_LOSS_SCALE = 1.0  # of float16: below it, no scale makes gradients finite
# Keras would read the position of each row's largest id as its class.
CLASS_WEIGHT = "class_weight is not supported: pass sample_weight, (B,) or (B, T)."


class TokenTrainer(keras.Model):
    """A `keras.Model` whose `fit` suits sentences of different lengths: the base of `Transformer`.

    Keras averages the mean losses of the replicas, so a replica with few target tokens counts as
    much as one with many, and its progress bar weights batches by their rows. With one output and
    the loss `SmoothedCrossEntropy`, gradients and reported losses here are means over the target
    tokens of all replicas: neither depends on how a batch is split into replicas or slices, padded
    or ordered. Penalties (`model.losses`) count once a step; activity regularizers are means over
    rows, so slices weight them by their target tokens.

    With other losses or reductions, several outputs or an overridden `compute_loss`, replicas are
    averaged as Keras averages them, and slices are refused, since it is unknown how to weight them.

    Batches are `(x, y)` or `(x, y, sample_weight)`; `y` and `sample_weight` are those of the loss.
    For `SmoothedCrossEntropy`, a label of V or above raises `ValueError`; where a graph cannot
    raise (XLA, GPUs), loss, metrics and gradients are NaN.

    A model that has a method `softmax_inputs(x, training)`, returning tensors (B, T, D) and (V, D)
    whose product, the second one transposed, are the logits of its `call`, trains with
    `SmoothedCrossEntropy` without ever holding the logits of a whole batch (the fused loss). It
    declares this by a class attribute, `fused_loss = True`. That holds for the `call` of this class
    and of its bases: a subclass that overrides `call` uses logits, unless it declares it again.

    It is a subclassed model: a functional one, of inputs and outputs, is refused. On backends other
    than TensorFlow, the training step is Keras' own.

    Attributes:
        parallel_microbatches: Number of slices of a batch that are computed in parallel, if each
            core runs one operation at a time (`kt.configure_threads`). It is a setting of the
            machine and is not saved. With metrics other than those of this package, which might
            depend on the slices, the batch stays whole.

    Example:

    >>> class Tagger(TokenTrainer):
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
    # Whether the logits of `call` are the product of `softmax_inputs`.
    fused_loss: bool = False
    # Set by `compile`.
    clip_norm: float | None = None
    accumulation_steps: int = 1
    rdrop: float = 0.0
    _fused_loss_option: str | bool = "auto"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or "inputs" in kwargs:
            # Keras would change the base classes of TokenTrainer, and so of all other models.
            raise ValueError("A TokenTrainer cannot be made of inputs and outputs: subclass it.")
        super().__init__(**kwargs)

    @classmethod
    def has_fused_loss(cls) -> bool:
        """Returns whether `fused_loss` is set by the class that defines `call`, or by a later one.

        A subclass that overrides `call`, or `decode` of a `Transformer`, and forgets to set it,
        computes other logits than `softmax_inputs`.
        """
        for kind in cls.__mro__:
            if "fused_loss" in vars(kind):
                return bool(vars(kind)["fused_loss"])
            if {"call", "decode"} & vars(kind).keys():
                return False
        return False

    def compile(
        self,
        *args: Any,
        clip_norm: float | None = None,
        accumulation_steps: int = 1,
        fused_loss: str | bool = "auto",
        rdrop: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Configures the training: see `keras.Model.compile`, with four more arguments.

        Args:
            *args, **kwargs: Those of `keras.Model.compile`.
            clip_norm: Maximum global norm of the gradients, or None. The optimizer's own
                `global_clipnorm` would clip the gradients of each replica separately.
            accumulation_steps: Number of slices of a batch whose gradients are accumulated, one
                slice after the other: the step is that of the whole batch, with the memory of a
                slice. It needs one output and the loss `SmoothedCrossEntropy`. Keras' own
                `gradient_accumulation_steps` fails under a strategy.
            fused_loss: `"auto"`, use the loss without logits of a whole batch if possible; `True`,
                require it; or `False`.
            rdrop: α of R-Drop (Wu et al., 2021, arXiv:2106.14448), or 0: each batch is computed
                twice with different dropout masks; the loss of a target token is the mean of both
                cross-entropies plus `α/4·(KL(p‖q) + KL(q‖p))`, where p and q are the predictions.
                This is half of the paper's equation 4, so that α = 0 is the loss without R-Drop. It
                takes about twice the time. It needs what `accumulation_steps` needs.

        Raises:
            ValueError: If an argument is out of range, needs the TensorFlow backend or does not fit
                the loss, or if a loss or metric expects probabilities instead of logits.
        """
        if clip_norm is not None:
            check_value("clip_norm", clip_norm, ABOVE_0)
        check_sizes(accumulation_steps=accumulation_steps)
        check_value("rdrop", rdrop, NOT_NEGATIVE)
        if fused_loss not in ("auto", True, False):
            raise ValueError(f'fused_loss must be "auto", True or False, received {fused_loss!r}.')
        if clip_norm is not None or accumulation_steps > 1 or rdrop or fused_loss is True:
            require_tensorflow("compile with clip_norm, accumulation_steps, rdrop or fused_loss")
        if IS_TENSORFLOW and self.distribute_strategy.num_replicas_in_sync > 1:
            is_replicated = self.distribute_strategy.extended.variable_created_in_scope
            if not all(is_replicated(variable.value) for variable in self.variables):
                raise ValueError("Create and compile the model in the scope of the strategy.")
        if self.has_fused_loss():  # it returns logits
            refuse_probabilities((args, kwargs))
        super().compile(*args, **kwargs)
        self.clip_norm = clip_norm
        self.accumulation_steps = accumulation_steps
        self._fused_loss_option = fused_loss
        self.rdrop = rdrop
        if IS_TENSORFLOW:
            keras_workarounds.release_graphs(self.optimizer)

    def get_compile_config(self) -> Config | None:
        config = super().get_compile_config()
        names = ("clip_norm", "accumulation_steps", "rdrop")
        options = {name: getattr(self, name) for name in names}
        return config and config | options | {"fused_loss": self._fused_loss_option}

    def compile_from_config(self, config: Config) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def fit(
        self, x: Any = None, *args: Any, class_weight: Any = None, **kwargs: Any
    ) -> keras.callbacks.History:
        """Trains the model: see `keras.Model.fit`, whose arguments it takes.

        Several workers each read their rows of every batch of a dataset made by `make_dataset`.

        Raises:
            ValueError: If `class_weight` is given.
            WorkerLostError: If another worker no longer responds.
        """
        if class_weight is not None:
            raise ValueError(CLASS_WEIGHT)
        strategy = self.distribute_strategy if IS_TENSORFLOW else None
        x = distribute(strategy, x) if strategy else x
        if strategy is None or not is_multiworker(strategy):
            return super().fit(x, *args, **kwargs)
        if "validation_data" in kwargs:
            kwargs["validation_data"] = distribute(strategy, kwargs["validation_data"])
        with WorkerWatch(joined_cluster()):
            history = super().fit(x, *args, **kwargs)
            broadcast_from_chief(strategy, {})  # workers end together: an ended one counts as lost
            return history

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the model: see `keras.Model.evaluate`, whose arguments it takes."""
        if IS_TENSORFLOW:
            x = distribute(self.distribute_strategy, x)
        return super().evaluate(x, *args, **kwargs)

    def train_on_batch(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        """Trains on one batch: see `keras.Model.train_on_batch`, whose arguments it takes."""
        if class_weight is not None:
            raise ValueError(CLASS_WEIGHT)
        return super().train_on_batch(*args, **kwargs)

    def save(self, filepath: Path, *args: Any, **kwargs: Any) -> None:
        """Saves the model: see `keras.Model.save`, whose arguments it takes; not as HDF5."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"{filepath} must end in .keras: Keras could not load this model from HDF5. "
                "save_weights writes .weights.h5."
            )
        super().save(filepath, *args, **kwargs)

    if IS_TENSORFLOW:  # private methods of Keras
        _make_function = keras_workarounds.make_function
        _maybe_symbolic_build = keras_workarounds.maybe_symbolic_build

    # A step.

    def train_step(self, *args: Nested) -> dict[str, Tensor]:
        """Trains on one batch, on each replica: see `keras.Model.train_step`."""
        if not IS_TENSORFLOW:
            return super().train_step(*args)
        batch = self._unpack_batch(*args)
        gradients = self._accumulate_gradients(batch)
        self._report_divergence(gradients)
        if self.clip_norm is not None:
            # float16's gradients are scaled
            max_norm = self.optimizer.scale_loss(self.clip_norm)
            gradients = _clip_by_global_norm(gradients, max_norm)
        if gradients:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        else:
            warnings.warn("The model has no trainable weights.", stacklevel=2)  # as Keras does
        return self.get_metrics_result()

    def _accumulate_gradients(self, batch):
        """Returns this replica's share of the gradients of the mean loss over all replicas."""
        all_tokens = None  # Keras weights all replicas alike
        if averages_tokens(self, batch[1]):
            (all_tokens,) = keras_workarounds.sum_over_replicas([tf.reduce_sum(batch[2])])
        if self.accumulation_steps == 1:
            return self._compute_gradients(batch, all_tokens)
        zeros = [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]
        unused = set()

        def compute(batch_slice):
            gradients = self._compute_gradients(batch_slice, all_tokens)
            unused.update(i for i, gradient in enumerate(gradients) if gradient is None)
            return [x if g is None else g for g, x in zip(gradients, zeros, strict=True)]

        fixed = bool(self.jit_compile)
        sums = accumulate(compute, batch, self.accumulation_steps, zeros, fixed)
        return [None if i in unused else gradient for i, gradient in enumerate(sums)]

    def _compute_gradients(self, batch, all_tokens):
        """Returns the same for one accumulated slice, split into parallel ones."""
        gradients = []
        for x, y, sample_weight, tokens in self._split(batch):
            if all_tokens is None:
                share = 1 / tf.distribute.get_replica_context().num_replicas_in_sync
            else:
                share = tf.math.divide_no_nan(tokens, all_tokens)
            if self._uses_fused_loss(sample_weight):
                loss, predictions, paths = fused_gradients(self, x, y, share)
            else:
                loss, predictions, paths = self._compute_plain_gradients(x, y, sample_weight, share)
            if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
                # It skips a step whose loss is not finite: it does not count.
                finite = tf.math.is_finite(loss)
                loss, tokens = tf.where(finite, loss, 0.0), tf.where(finite, tokens, 0.0)
            self._update_metrics(x, y, predictions, sample_weight, loss, tokens)
            gradients += paths
        return [sum_gradients(some) for some in zip(*gradients, strict=True)]

    def _split(self, batch):
        """Yields the parallel slices of a batch, each with the weight of its loss in the report."""
        metrics_fit = all(isinstance(metric, PER_TOKEN) for metric in self._compiled_metrics())
        slices = split(batch, self.parallel_microbatches if metrics_fit else 1)
        for x, y, weights, *sample_weight in slices:
            yield x, y, sample_weight[0] if sample_weight else None, tf.reduce_sum(weights)

    def _compute_plain_gradients(self, x, y, sample_weight, share):
        """Computes loss, logits and gradients as Keras does; see `fused_gradients`."""
        passes = 2 if self.rdrop else 1
        batch = repeat_batch((x, y, sample_weight), passes)
        with tf.GradientTape() as tape:
            logits = self(batch[0], training=True)
            loss = self.compute_loss(batch[0], batch[1], logits, batch[2], training=True)
            # Keras scales a mean by 1/replicas because gradients are summed over the replicas.
            loss *= tf.distribute.get_replica_context().num_replicas_in_sync
            if passes > 1:
                loss += tf.cast(self.rdrop * rdrop_term(y, logits, sample_weight), loss.dtype)
                logits = tf.split(logits, passes)[0]  # for the metrics
            scaled = self.optimizer.scale_loss(loss * tf.cast(share, loss.dtype))
        return loss, logits, [tape.gradient(scaled, self.trainable_variables)]

    def test_step(self, *args: Nested) -> dict[str, Tensor]:
        """Evaluates one batch, on each replica: see `keras.Model.test_step`."""
        if not IS_TENSORFLOW:
            return super().test_step(*args)
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        for x, y, sample_weight, tokens in self._split(self._unpack_batch(*args)):
            logits = self(x, training=False)
            loss = self.compute_loss(x, y, logits, sample_weight, training=False) * replicas
            logs = self._update_metrics(x, y, logits, sample_weight, loss, tokens)
        return logs

    def _uses_fused_loss(self, sample_weight):
        """Decides whether to use the fused loss."""
        if self._fused_loss_option is False:
            return False
        allowed = sample_weight is None and allows_fused_loss(self, self._compiled_metrics())
        if self._fused_loss_option is True and not allowed:
            raise ValueError(
                "fused_loss=True needs a class that declares it, SmoothedCrossEntropy, no weights "
                'of samples or losses, and metrics of this package: try fused_loss="auto".'
            )
        # Metrics that could not be built ahead are built by logits, in a first trace.
        return allowed and all(getattr(group, "built", True) for group in self.metrics)

    # What the progress bar shows.

    def _update_metrics(self, x, y, predictions, sample_weight, loss, weight):
        """Updates the mean loss and the metrics."""
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss, sample_weight=weight)
        if isinstance(predictions, TokenPredictions):
            for metric in self._compiled_metrics():
                metric.update_state(y, predictions)
            return self.get_metrics_result()
        return self.compute_metrics(x, y, predictions, sample_weight)

    def _report_divergence(self, gradients):
        """Sets the reported loss to NaN if the gradient norm is not finite.

        With a loss scale above its minimum, the optimizer only skips the step.
        """
        norms = [tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients if g is not None]
        finite = tf.math.is_finite(tf.add_n([tf.zeros([]), *norms]))
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            finite |= self.optimizer.scale_loss(1.0) > MIN_LOSS_SCALE
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.total.assign_add(tf.where(finite, 0.0, math.nan))

    def _compiled_metrics(self):
        """Returns the metrics that were passed to `compile`."""
        return [m for group in self.metrics for m in getattr(group, "metrics", [])]

    # Checks of batches.

    def _unpack_batch(self, data):
        """Returns x, y, the weights of the labels and, if there are any, the sample weights.

        If the loss is not a mean over target tokens, each row has the weight 1, as in Keras.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if y is None:
            raise ValueError("Labels are missing: a batch must be (x, y), received only x.")
        if averages_tokens(self, y):
            weights = token_weights(y, sample_weight)
        elif (self.accumulation_steps, self.parallel_microbatches, self.rdrop) != (1, 1, 0):
            raise ValueError(
                "accumulation_steps, parallel_microbatches and rdrop need one output, the loss "
                "SmoothedCrossEntropy with its default reduction, and Keras' compute_loss."
            )
        else:
            weights = tf.ones(tf.shape(tf.nest.flatten(x)[0])[:1])
        return (x, y, weights) if sample_weight is None else (x, y, weights, sample_weight)


def _clip_by_global_norm(gradients, max_norm):
    """Clips the sum of the gradients over replicas; returns this replica's share of it."""
    known = keras_workarounds.sum_over_replicas(
        [gradient for gradient in gradients if gradient is not None]
    )
    known, _ = tf.clip_by_global_norm(known, max_norm)
    # The optimizer will sum them over the replicas once more.
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    clipped = iter([gradient / replicas for gradient in known])
    return [None if gradient is None else next(clipped) for gradient in gradients]
