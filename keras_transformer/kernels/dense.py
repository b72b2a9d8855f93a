"""Dense layers with Keras' weights, config and tools, whose products are exact and fast.

Shapes: N rows, D width of the input, D' of the output.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import keras
from keras import ops

from keras_transformer.kernels.products import multiply
from keras_transformer.utils import Tensor

Projection: TypeAlias = Callable[[Tensor], Tensor]

# XLA repacks the second factor of a product each time. Transposing the product is faster with at
# least MIN_ROWS_TRANSPOSED rows, or with a kernel whose width / height is at least
# MIN_ASPECT_TRANSPOSED, which lies by columns in memory already.
MIN_ROWS_TRANSPOSED = 16
MIN_ASPECT_TRANSPOSED = 8
MIN_FLOAT = -3.4e38  # about float32's and bfloat16's lowest number


class _SavesLora(keras.layers.Layer):
    """Saves the matrices of LoRA too, by name.

    Keras saves their product, added to the kernel, and loads zeros, whose gradients are zeros: LoRA
    would never learn again. A layer without LoRA loads the merged kernel, as in Keras.
    """

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.lora_enabled:
            for variable in self.variables:
                store[variable.name] = variable

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables({key: store[key] for key in store.keys() if key.isdigit()})
        if self.lora_enabled and "lora_kernel_a" in store.keys():
            for variable in self.variables:
                variable.assign(store[variable.name])

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:
        # Keras does not quantize subclasses, which might compute something else. These do not.
        super().quantize(mode, type_check=False, config=config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(_SavesLora, keras.layers.Dense):
    """`keras.layers.Dense` with the products of `kernels.products.multiply`.

    Arguments, weights, LoRA and quantization are those of `keras.layers.Dense`.

    Call arguments:
        inputs: Tensor of shape `(..., D)`.

    Returns:
        Tensor of shape `(..., D')`.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        y = _project_flattened(inputs, self)
        return ops.reshape(y, (*ops.shape(inputs)[:-1], self.units))


@keras.saving.register_keras_serializable(package="keras_transformer")
class EinsumDense(_SavesLora, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` computed as one matrix product, see `Dense`.

    Arguments, weights, LoRA and quantization are those of `keras.layers.EinsumDense`; the equation
    must sum over the input's last axes and the kernel's first, like `"btd,dhk->bthk"` and
    `"bthk,hkd->btd"`.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        y = _project_flattened(inputs, self)
        summed = _summed_axes(self)
        return ops.reshape(y, (*ops.shape(inputs)[:-summed], *self.kernel.shape[summed:]))

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        return previous_mask


def matrix_and_bias(dense: Dense | EinsumDense) -> tuple[Tensor, Tensor | None]:
    """Returns the current weights of a `Dense` or `EinsumDense`, in the compute dtype.

    Args:
        dense: The layer, built and not quantized.

    Returns:
        A matrix `(D, D')` and a vector `(D',)`, or None without a bias.
    """
    kernel = ops.cast(dense.kernel, dense.compute_dtype)
    if len(kernel.shape) > 2:
        kernel = ops.reshape(kernel, (math.prod(kernel.shape[: _summed_axes(dense)]), -1))
    if dense.bias is None:
        return kernel, None
    return kernel, ops.reshape(ops.cast(dense.bias, dense.compute_dtype), (-1,))


def project(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `x W + b`.

    Args:
        x: Tensor of shape `(..., D)` in the kernel's dtype.
        kernel: W, shape `(D, D')`.
        bias: b, shape `(D',)`; or None.

    Returns:
        Tensor of shape `(..., D')`.
    """
    y = multiply(x, kernel)
    # Keras makes `ops.add` of a vector a bias, which TensorFlow fuses with the product.
    return y if bias is None else ops.add(y, bias)


# In a loop over few rows, a product takes about as long as reading W from memory, so the memory
# layout of W matters. It is changed once, before the loop. The following functions return
# `x ↦ x W + b` for such a loop; their arguments are those of `project`.


def graph_projection(kernel: Tensor, bias: Tensor | None = None) -> Projection:
    """Returns a projection for a loop run by TensorFlow's executor."""
    if keras.backend.standardize_dtype(kernel.dtype) != "bfloat16":
        add = unfused_add(bias)
        return lambda x: add(ops.matmul(x, kernel))
    # W is stored by columns, because bfloat16 units read pairs of neighbouring inputs. That takes
    # a fifth to a third less time for 32 rows. TensorFlow fuses product and transposition, and
    # caches the layout of frozen weights only with a bias.
    columns = ops.transpose(kernel)
    bias = ops.zeros((kernel.shape[1],), kernel.dtype) if bias is None else bias
    return lambda x: ops.add(ops.matmul(x, ops.transpose(columns)), bias)


def unfused_add(bias: Tensor | None) -> Projection:
    """Returns a function that adds a bias, which TensorFlow does not fuse with a product.

    Fused, both take longer for few rows.
    """
    if bias is None:
        return lambda y: y
    minus_bias = ops.negative(bias)
    return lambda y: ops.subtract(y, minus_bias)


def xla_projection(kernel: Tensor, bias: Tensor | None = None) -> Projection:
    """Returns a projection of rows `(N, D)` for a loop compiled by XLA.

    It computes `(Wᵀ xᵀ)ᵀ`, which takes a third less time for 32 rows.
    """
    height, width = kernel.shape
    columns = ops.transpose(kernel)

    def project_rows(x):
        if width < MIN_ASPECT_TRANSPOSED * height and (x.shape[0] or 0) < MIN_ROWS_TRANSPOSED:
            return project(x, kernel, bias)
        y = ops.matmul(columns, ops.transpose(x))
        # Without an operation between product and transposition, XLA would swap the factors back.
        y = ops.maximum(y, MIN_FLOAT) if bias is None else y + ops.expand_dims(bias, 1)
        return ops.transpose(y)

    return project_rows


class LoopOperations(NamedTuple):
    """The operations of a decoding loop."""

    multiply: Callable[..., Tensor] = multiply
    softmax: Callable[[Tensor], Tensor] = ops.softmax
    projection: Callable[..., Projection] = graph_projection


ANY_LOOP = LoopOperations()
XLA_LOOP = LoopOperations(projection=xla_projection)


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
