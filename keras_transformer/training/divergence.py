"""Divergence: a loss, gradients or weights that are not finite."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import keras
import numpy as np

REMEDY = "a smaller learning rate, a longer warm-up or gradients clipped by global norm"


class StopOnDivergence(keras.callbacks.Callback):
    """Stops `fit` at the first step whose loss or gradient norm is not finite.

    Such a step destroys the weights, whatever the next losses are. Keras' `TerminateOnNaN` looks at
    the loss alone; `TokenTrainer` also reports a loss of NaN if the gradient norm is not finite.
    With mixed_float16, such steps are skipped and halve the loss scale; training stops once that is
    down to 1. A validation loss that is not finite stops `fit` too.

    `ResumeTraining` does this by itself, and saves nothing of a training that has diverged.

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
            stop(self.model, of_step(batch + 1, self._epoch))

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops if the validation loss is not finite."""
        if has_diverged(logs):
            stop(self.model, of_validation(self._epoch))


def has_diverged(logs: Mapping[str, Any] | None) -> bool:
    """Returns whether the logs have a loss that is not finite."""
    return not math.isfinite((logs or {}).get("loss", 0.0))


def of_step(step: int, epoch: int) -> str:
    """Names what is not finite: a step, counted from 1 in each epoch."""
    return f"the loss or the gradient norm of step {step:,} of epoch {epoch:,}"


def of_validation(epoch: int) -> str:
    """Names what is not finite: the validation after an epoch."""
    return f"the validation loss of epoch {epoch:,}"


def stop(model: keras.Model, what: str, remedy: str = REMEDY) -> NoReturn:
    """Stops `fit`. With several workers, all of them must call this function.

    Args:
        model: The model that is being trained.
        what: What is not finite.
        remedy: What to change.

    Raises:
        FloatingPointError: Always.
    """
    rate = float(model.optimizer.learning_rate)
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's
    if strategy is not None:
        from keras_transformer.training.distribution import broadcast_from_chief

        broadcast_from_chief(strategy, {})  # a worker that ended is lost for the others
    raise FloatingPointError(
        f"The training diverged: {what} is not finite, at a learning rate of {rate:.3g}. Train "
        f"again with {remedy}."
    )


def all_finite(model: keras.Model) -> bool:
    """Returns whether all trainable weights of a model are finite."""
    return not any(map(_is_bad, model.trainable_variables))


def check_weights(model: keras.Model, name: str) -> None:
    """Refuses a model with weights that are not finite.

    Args:
        model: A built model.
        name: What to call it.

    Raises:
        ValueError: If there are any.
    """
    bad = next(filter(_is_bad, model.weights), None)
    if bad is not None:
        raise ValueError(
            f"{name} has weights that are not finite, such as {bad.path}: its training diverged. "
            "Use a checkpoint from before that, or train again with a smaller learning rate."
        )


def _is_bad(variable):
    return not np.isfinite(keras.ops.convert_to_numpy(variable)).all()
