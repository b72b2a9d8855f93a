"""The learning-rate schedule."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Grows linearly for `warmup_steps`, then falls with the square root of the step.

    "Attention Is All You Need", §5.3, equation 3:
    `D^−0.5 · min(step^−0.5, step · warmup_steps^−1.5)`. Steps count from 1, so the first update
    already has a learning rate. Give either `d_model`, for the paper's height, or `peak`.

    Args:
        d_model: D; the peak is then `(D · warmup_steps)^−0.5`.
        peak: The highest learning rate, reached after `warmup_steps` steps.
        warmup_steps: Number of steps, at least 1.

    Raises:
        ValueError: If not exactly one of `d_model` and `peak` is given, or one is not positive.

    Example:

    >>> WarmupInverseSqrt(d_model=512, warmup_steps=4000)(3999)
    0.000699
    """

    def __init__(self, d_model=None, peak=None, warmup_steps=4000):
        super().__init__()
        if (d_model is None) == (peak is None):
            raise ValueError(
                f"Give either d_model or peak, received d_model={d_model} and peak={peak}."
            )
        if warmup_steps < 1 or (d_model if peak is None else peak) <= 0:
            raise ValueError(
                "d_model, peak and warmup_steps must be positive, received "
                f"d_model={d_model}, peak={peak} and warmup_steps={warmup_steps}."
            )
        self.d_model = d_model
        self.peak = peak
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        height = self.peak or 1 / math.sqrt(self.d_model * self.warmup_steps)
        share = (ops.cast(step, "float32") + 1.0) / self.warmup_steps
        return height * ops.minimum(share, ops.rsqrt(share))

    def get_config(self):
        return {"d_model": self.d_model, "peak": self.peak, "warmup_steps": self.warmup_steps}
