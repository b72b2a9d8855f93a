"""Dropout that needs few random bits."""

from typing import Any

import keras
from keras import ops

from keras_transformer.utils import Config, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` at half the cost (Srivastava et al., 2014).

    It generates one random byte for each entry, where Keras generates four. So `rate` is rounded to
    a multiple of 1/256, and the remaining entries are scaled accordingly: expectations do not
    change. If rounding would change `rate` by more than 2 % (near 0 or 1), Keras' own dropout is
    used.

    Args:
        rate: Fraction of the entries to drop in training.
        seed: Seed of the random numbers.

    Call arguments:
        inputs: Tensor whose last axis has a known size.
        training: Whether to apply dropout.

    Returns:
        Tensor of the same shape and dtype.
    """

    def __init__(
        self, rate: float, seed: int | keras.random.SeedGenerator | None = None, **kwargs: Any
    ) -> None:
        super().__init__(rate, seed=seed, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        dropped = round(256 * self.rate)
        if not training or abs(dropped / 256 - self.rate) >= 0.02 * min(self.rate, 1 - self.rate):
            return super().call(inputs, training=training)
        *leading, width = ops.shape(inputs)
        words = (*leading, -(-width // 4))
        # All integers but one: the bytes are practically uniform.
        bits = keras.random.randint(words, -(2**31), 2**31 - 1, seed=self.seed_generator)
        kept = ops.view(bits, "uint8")[..., :width] >= dropped
        # One product forwards and one backwards; selecting between tensors would take more.
        return inputs * (ops.cast(kept, inputs.dtype) * (256 / (256 - dropped)))

    def get_config(self) -> Config:
        config = super().get_config()
        return {name: value for name, value in config.items() if name != "noise_shape"}
