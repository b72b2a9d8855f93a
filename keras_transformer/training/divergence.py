"""Divergence: a loss, gradients or weights that are not finite."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import keras
import numpy as np

REMEDY = "a smaller learning rate, a longer warm-up or gradients clipped by global norm"


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
            stop(self.model, describe_step(batch + 1, self._epoch))

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops if the validation loss is not finite."""
        if has_diverged(logs):
            stop(self.model, describe_validation(self._epoch))


def has_diverged(logs: Mapping[str, Any] | None) -> bool:
    """Returns whether the logs have a loss that is not finite."""
    return not math.isfinite((logs or {}).get("loss", 0.0))


def describe_step(step: int, epoch: int) -> str:
    """Returns the subject of an error about a step, counted from 1 in each epoch."""
    return f"the loss or the gradient norm of step {step:,} of epoch {epoch:,}"


def describe_validation(epoch: int) -> str:
    """Returns the subject of an error about the validation after an epoch."""
    return f"the validation loss of epoch {epoch:,}"


def stop(model: keras.Model, what: str, remedy: str = REMEDY) -> NoReturn:
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


def all_finite(model: keras.Model) -> bool:
    """Returns whether all trainable weights of a model are finite."""
    return all(map(_is_finite, model.trainable_variables))


def check_weights(model: keras.Model, name: str) -> None:
    """Checks that all weights of a built model, except `suppressed`, are finite."""
    weights = (weight for weight in model.weights if weight.name != "suppressed")
    invalid = next((weight for weight in weights if not _is_finite(weight)), None)
    if invalid is not None:
        raise ValueError(
            f"{name} has weights that are not finite, such as {invalid.path}: its training "
            "diverged. Use an earlier checkpoint, or train again with a smaller learning rate."
        )


def _is_finite(variable):
    return np.isfinite(keras.ops.convert_to_numpy(variable)).all()
