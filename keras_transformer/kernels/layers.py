"""Keras' layers with faster computations: weights, configuration and tools are Keras' own.

Shapes: N rows, D width of the input, D' of the output.
"""

import math

import keras
from keras import ops

from keras_transformer.kernels.backend import IS_TENSORFLOW, project
from keras_transformer.utils import Tensor

if IS_TENSORFLOW:
    from keras_transformer.kernels.tensorflow.machine import graph_shape

shape = graph_shape if IS_TENSORFLOW else ops.shape


class _Projection(keras.layers.Layer):
    """Computes `Dense` and `EinsumDense` as one matrix product over all positions."""

    equation: str

    @property
    def summed_axes(self) -> int:
        """How many of the input's last axes, and of the kernel's first ones, the product sums."""
        inputs, output = self.equation.split("->")
        return sum(letter not in output for letter in inputs.split(",")[0])

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        matrix, bias = self.matrix_and_bias()
        x = ops.reshape(ops.cast(inputs, matrix.dtype), (-1, matrix.shape[0]))
        y = project(x, matrix, bias)  # two axes: TensorFlow fuses product and bias
        y = y if self.activation is None else self.activation(y)
        sizes = self.kernel.shape[self.summed_axes :]
        return ops.reshape(y, (*shape(inputs)[: -self.summed_axes], *sizes))

    def matrix_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Returns the current kernel `(D, D')` and bias `(D',)` or None, in the compute dtype."""
        kernel = ops.cast(self.kernel, self.compute_dtype)
        if len(kernel.shape) > 2:
            kernel = ops.reshape(kernel, (math.prod(kernel.shape[: self.summed_axes]), -1))
        bias = None if self.bias is None else ops.cast(self.bias, self.compute_dtype)
        return kernel, ops.reshape(bias, (-1,)) if bias is not None and bias.ndim > 1 else bias

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:
        # Keras does not quantize subclasses, which might compute something else. These do not.
        super().quantize(mode, type_check=False, config=config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(_Projection, keras.layers.Dense):
    """`keras.layers.Dense` with the products of `kernels.backend`."""

    equation = "nd,dk->nk"


@keras.saving.register_keras_serializable(package="keras_transformer")
class EinsumDense(_Projection, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` computed as one matrix product.

    The equation must sum over the input's last axes and the kernel's first, like `"btd,dhk->bthk"`
    and `"bthk,hkd->btd"`.
    """


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` at half the cost (Srivastava et al., 2014).

    It generates one random byte for each entry, where Keras generates four. So `rate` is rounded to
    a multiple of 1/256, and the remaining entries are scaled accordingly: expectations do not
    change. If rounding would change `rate` by more than 2 % (near 0 or 1), Keras' own dropout is
    used.
    """

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        dropped = round(256 * self.rate)
        if not training or abs(dropped / 256 - self.rate) >= 0.02 * min(self.rate, 1 - self.rate):
            return super().call(inputs, training=training)
        *leading, width = shape(inputs)
        words = (*leading, -(-width // 4))
        # All integers but one: the bytes are practically uniform.
        bits = keras.random.randint(words, -(2**31), 2**31 - 1, seed=self.seed_generator)
        kept = ops.view(bits, "uint8")[..., :width] >= dropped
        # One product forwards and one backwards; selecting between tensors would take more.
        return inputs * (ops.cast(kept, inputs.dtype) * (256 / (256 - dropped)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` over the last axis, in fewer passes over memory.

    Ba et al. (2016), "Layer Normalization", equation 4. A Transformer normalizes after every
    sublayer; with Keras' own layer, that takes a seventh of a narrow model's training step, with
    this one a third less. Mean and variance are float32 in every precision.
    """

    def call(self, x: Tensor) -> Tensor:
        return self.normalize(x, ops.cast(self.gamma, "float32"), ops.cast(self.beta, "float32"))

    def normalize(self, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        """Does the same as `call` with weights that are already float32, as in a decoding loop."""
        x = ops.cast(x, "float32")
        # Sums times 1/D, not means: the gradient of a mean takes one pass over memory more.
        share = 1 / x.shape[-1]
        centred = x - ops.sum(x, axis=-1, keepdims=True) * share
        variance = ops.sum(ops.square(centred), axis=-1, keepdims=True) * share
        y = centred * ops.rsqrt(variance + self.epsilon) * gamma + beta
        return ops.cast(y, self.compute_dtype)
