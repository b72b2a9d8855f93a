"""Keras' layers with faster computations: weights, configuration and tools are Keras' own.

Shapes: N rows, D width of the input, D' of the output.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.products import project
from keras_transformer.presets.options import EPSILON, POSITIVE, check_value
from keras_transformer.utils import Config, Tensor


class _QuantizableSubclass(keras.layers.Layer):
    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:
        # Keras does not quantize subclasses, which might compute something else. These do not.
        super().quantize(mode, type_check=False, config=config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(_QuantizableSubclass, keras.layers.Dense):
    """`keras.layers.Dense` with the products of `kernels.products`."""

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        y = _project_flattened(inputs, self)
        return ops.reshape(y, (*ops.shape(inputs)[:-1], self.units))


@keras.saving.register_keras_serializable(package="keras_transformer")
class EinsumDense(_QuantizableSubclass, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` computed as one matrix product.

    The equation must sum over the input's last axes and the kernel's first, like `"btd,dhk->bthk"`
    and `"bthk,hkd->btd"`.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        y = _project_flattened(inputs, self)
        summed = _summed_axes(self)
        return ops.reshape(y, (*ops.shape(inputs)[:-summed], *self.kernel.shape[summed:]))

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        return previous_mask


def matrix_and_bias(dense: Dense | EinsumDense) -> tuple[Tensor, Tensor | None]:
    """Returns the current kernel `(D, D')` and bias `(D',)` or None, in the compute dtype."""
    kernel = ops.cast(dense.kernel, dense.compute_dtype)
    if len(kernel.shape) > 2:
        kernel = ops.reshape(kernel, (math.prod(kernel.shape[: _summed_axes(dense)]), -1))
    if dense.bias is None:
        return kernel, None
    return kernel, ops.reshape(ops.cast(dense.bias, dense.compute_dtype), (-1,))


def _project_flattened(x, dense):
    """Projects all positions as one matrix, `(N, D')`; TensorFlow fuses product and bias."""
    kernel, bias = matrix_and_bias(dense)
    x = ops.reshape(ops.cast(x, kernel.dtype), (-1, kernel.shape[0]))
    y = project(x, kernel, bias)
    return y if dense.activation is None else dense.activation(y)


def _summed_axes(dense):
    """Counts the axes of an `EinsumDense`'s input that its kernel sums over."""
    inputs, output = dense.equation.split("->")
    return sum(letter not in output for letter in inputs.split(",")[0])


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` at half the cost (Srivastava et al., 2014).

    It generates one random byte for each entry, where Keras generates four. So `rate` is rounded to
    a multiple of 1/256, and the remaining entries are scaled accordingly: expectations do not
    change. If rounding would change `rate` by more than 2 % (near 0 or 1), Keras' own dropout is
    used.
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


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis, in fewer passes over memory.

    Ba et al. (2016), "Layer Normalization", equation 4. A Transformer normalizes after every
    sublayer; with Keras' own layer, that takes a seventh of a narrow model's training step, with
    this one a third less. Mean and variance are float32 in every precision.
    """

    def __init__(self, epsilon: float = EPSILON, **kwargs: Any) -> None:
        check_value("epsilon", epsilon, POSITIVE)
        super().__init__(axis=-1, epsilon=epsilon, **kwargs)

    def call(self, x: Tensor) -> Tensor:
        return self.as_function()(x)

    def as_function(self) -> Callable[[Tensor], Tensor]:
        """Returns a function that does the same as `call`, with the current weights."""
        gamma, beta = (ops.cast(weight, "float32") for weight in (self.gamma, self.beta))

        def normalize(x):
            y = self._normalize(ops.cast(x, "float32"), gamma, beta)
            return ops.cast(y, self.compute_dtype)

        return normalize

    def get_config(self) -> Config:
        config = super().get_config()
        return {name: config[name] for name in ("name", "trainable", "dtype", "epsilon")}

    def _normalize(self, x, gamma, beta):
        # Sums times 1/D, not means: the gradient of a mean takes one pass over memory more.
        share = 1 / x.shape[-1]
        centred = x - ops.sum(x, axis=-1, keepdims=True) * share
        variance = ops.sum(ops.square(centred), axis=-1, keepdims=True) * share
        return centred * ops.rsqrt(variance + self.epsilon) * gamma + beta
