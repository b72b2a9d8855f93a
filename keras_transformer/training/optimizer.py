"""The optimizer of the recipe, its learning rate, and the end of a training that diverges."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import keras
from keras import ops

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.presets.options import COUNT, POSITIVE, check_value
from keras_transformer.utils import Config, Tensor

if IS_TENSORFLOW:
    import tensorflow as tf
else:
    tf = None


REMEDY = "a smaller learning rate, a longer warm-up or gradients clipped by global norm"


def optimizer_of(model: keras.Model) -> Any:
    """Returns a model's optimizer, without loss scaling; None if the model is not compiled."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(optimizer, "inner_optimizer", optimizer)


@keras.saving.register_keras_serializable(package="keras_transformer")
class EMAAdam(keras.optimizers.Adam):
    """Adam in one pass over memory, with an exponential moving average (EMA) that starts fast.

    Kingma and Ba (2015), "Adam: A Method for Stochastic Optimization", as in Keras; but on
    TensorFlow, it takes one operation for each variable. Keras takes a dozen, each of which reads
    and writes the whole variable.

    After t steps the momentum of the EMA (`use_ema`) is min(`ema_momentum`, (1 + t) / (10 + t)), as
    in `tf.train.ExponentialMovingAverage` with `num_updates`. With a constant momentum, the EMA
    would hold the random initial weights for as long as a warm-up lasts.

    It takes the arguments of `keras.optimizers.Adam`.

    Example:

    >>> optimizer = EMAAdam(WarmupInverseSqrt(d_model=64), use_ema=True, ema_momentum=0.99)
    >>> model.compile(optimizer, SmoothedCrossEntropy(), jit_compile=False)
    """

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        """Computes the powers of β₁ and β₂ once, and passes them along with the learning rate."""
        if tf is not None:
            step = ops.cast(self.iterations + 1, "float32")
            learning_rate = ops.convert_to_tensor(learning_rate)
            learning_rate = learning_rate, self.beta_1**step, self.beta_2**step
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(
        self,
        gradient: Tensor,
        variable: keras.Variable | Tensor,
        learning_rate: Tensor | tuple[Tensor, Tensor, Tensor],
    ) -> Tensor | None:
        if tf is None:
            return super().update_step(gradient, variable, learning_rate)
        learning_rate, beta1_power, beta2_power = learning_rate
        # Dense: Keras would add the squares of the gradients of a row that occurs several times.
        gradient = tf.convert_to_tensor(gradient)
        if self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        variable = variable.value if isinstance(variable, keras.Variable) else variable
        index = self._get_variable_index(variable)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.cast(beta1_power, variable.dtype),
            beta2_power=tf.cast(beta2_power, variable.dtype),
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=tf.cast(self.beta_1, variable.dtype),
            beta2=tf.cast(self.beta_2, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
        )

    @property
    def ema_momentum(self) -> Tensor:
        """The momentum of the next step."""
        steps = ops.cast(self.iterations, "float32")
        return ops.minimum(self._max_momentum, (1.0 + steps) / (10.0 + steps))

    @ema_momentum.setter
    def ema_momentum(self, value: float) -> None:
        self._max_momentum = value

    def get_config(self) -> Config:
        return super().get_config() | {"ema_momentum": self._max_momentum}


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up, then a decay with the inverse square root of the step.

    "Attention Is All You Need", §5.3, equation 3:
    `D^−0.5 · min(step^−0.5, step · warmup_steps^−1.5)`. Steps count from 1, so the first step
    already has a learning rate. Give either `d_model`, for the paper's peak, or `peak`.

    With `cooldown_steps`, the learning rate also decays linearly to zero in the last steps: Zhai et
    al. (2022), "Scaling Vision Transformers", §3.5. Before the cooldown, it does not depend on the
    length of the training.

    Args:
        d_model: D; the peak is then `(D · warmup_steps)^−0.5`.
        peak: The highest learning rate, reached after `warmup_steps` steps.
        warmup_steps: Number of steps, at least 1.
        cooldown_steps: Number of steps of the cooldown; 0 for none.
        total_steps: Number of steps of the whole training; required for a cooldown.

    Call arguments:
        step: Number of steps done, an int or a scalar tensor.

    Returns:
        Scalar, float32.

    Raises:
        ValueError: If not exactly one of `d_model` and `peak` is given, one is not a positive
            number, or the cooldown is longer than the training.

    Example:

    >>> WarmupInverseSqrt(d_model=512, warmup_steps=4000)(3999)
    0.000699
    """

    def __init__(
        self,
        d_model: int | None = None,
        peak: float | None = None,
        warmup_steps: int = 4000,
        cooldown_steps: int = 0,
        total_steps: int | None = None,
    ) -> None:
        super().__init__()
        if (d_model is None) == (peak is None):
            raise ValueError(f"Name d_model or peak, received d_model={d_model} and peak={peak}.")
        if d_model is None:
            check_value("peak", peak, POSITIVE)
        else:
            check_value("d_model", d_model, COUNT)
        check_value("warmup_steps", warmup_steps, COUNT)
        if cooldown_steps and not 0 < cooldown_steps <= (total_steps or 0):
            raise ValueError(
                f"cooldown_steps must be in 0 … total_steps={total_steps}, received "
                f"{cooldown_steps}."
            )
        self.d_model = d_model
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.cooldown_steps = cooldown_steps
        self.total_steps = total_steps

    def __call__(self, step: int | Tensor) -> Tensor:
        peak = self.peak
        if self.d_model is not None:
            peak = 1 / math.sqrt(self.d_model * self.warmup_steps)
        step = ops.cast(step, "float32")
        share = (step + 1.0) / self.warmup_steps
        rate = peak * ops.minimum(share, ops.rsqrt(share))
        if not self.cooldown_steps:
            return rate
        return rate * ops.clip((self.total_steps - step) / self.cooldown_steps, 0.0, 1.0)

    def get_config(self) -> Config:
        names = ("d_model", "peak", "warmup_steps", "cooldown_steps", "total_steps")
        return {name: getattr(self, name) for name in names}


# Divergence: a loss, gradients or weights that are not finite.


class StopOnDivergence(keras.callbacks.Callback):
    """Stops `fit` at the first step whose loss or gradient norm is not finite.

    Such a step destroys the weights. Keras' `TerminateOnNaN` checks only the loss; `TokenTrainer`
    also reports a loss of NaN if the gradient norm is not finite. With mixed_float16, such steps
    are skipped and halve the loss scale; training stops once that is down to 1. A validation loss
    that is not finite stops `fit` too.

    `ResumeTraining` does the same automatically, and does not save a training that has diverged.

    Raises:
        FloatingPointError: From `fit`, on all workers alike. It names the step, the learning rate
            and what to try.

    Example:

    >>> callbacks = [StopOnDivergence()]
    >>> history = model.fit(dataset, shuffle=False, callbacks=callbacks, verbose=0)
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stores the number of the epoch."""
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops if the loss of the step is not finite."""
        if has_diverged(logs):
            stop_training(self.model, describe_step(batch + 1, self._epoch))

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops if the validation loss is not finite."""
        if has_diverged(logs):
            stop_training(self.model, describe_validation(self._epoch))


def has_diverged(logs: Mapping[str, Any] | None) -> bool:
    """Returns whether the logs have a loss that is not finite."""
    return not math.isfinite((logs or {}).get("loss", 0.0))


def describe_step(step: int, epoch: int) -> str:
    """Returns the subject of an error about a step, counted from 1 in each epoch."""
    return f"the loss or the gradient norm of step {step:,} of epoch {epoch:,}"


def describe_validation(epoch: int) -> str:
    """Returns the subject of an error about the validation after an epoch."""
    return f"the validation loss of epoch {epoch:,}"


def stop_training(model: keras.Model, what: str, remedy: str = REMEDY) -> NoReturn:
    """Stops `fit`, as `what` is not finite. With several workers, all must call this function."""
    rate = float(model.optimizer.learning_rate)
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's
    if strategy is not None:
        from keras_transformer.training.distribution import broadcast_from_chief

        broadcast_from_chief(strategy, {})  # workers end together: an ended one counts as lost
    raise FloatingPointError(
        f"The training diverged: {what} is not finite, at a learning rate of {rate:.3g}. Train "
        f"again with {remedy}."
    )
