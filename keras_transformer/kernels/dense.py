"""Dense layers with Keras' weights, config and tools, whose products are exact and fast.

Shapes: N rows, D width of the input, D' of the output.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.products import is_exact, multiply
from keras_transformer.utils import Tensor

# XLA packs the second factor of a product anew each time. It is faster to make that the rows:
FEWEST_ROWS = 16  # from so many rows on,
VOCABULARY = 8  # or where the kernel is so many times as wide as high, by columns in memory already
MIN_FLOAT = -3.4e38  # about float32's and bfloat16's lowest number


class _KeepsLora(keras.layers.Layer):
    """Saves the matrices of LoRA too, under their names.

    Keras saves their product, added to the kernel, and loads zeros, whose gradients are zeros: LoRA
    would never learn again. What has no LoRA loads what Keras saves.
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


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dense(_KeepsLora, keras.layers.Dense):
    """`keras.layers.Dense` whose products are rounded as `multiply` rounds them.

    Arguments, weights, LoRA and quantization are those of `keras.layers.Dense`.

    Call arguments:
        inputs: Tensor of shape `(..., D)`.

    Returns:
        Tensor of shape `(..., D')`.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        y = _by_rows(inputs, *matrix_and_bias(self))
        y = y if self.activation is None else self.activation(y)
        return ops.reshape(y, (*ops.shape(inputs)[:-1], self.units))

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:
        # Keras refuses subclasses, which might compute something else. This one does not.
        super().quantize(mode, type_check=False, config=config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class EinsumDense(_KeepsLora, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` as one product of matrices, as `Dense` makes it.

    Arguments, weights, LoRA and quantization are those of `keras.layers.EinsumDense`; the equation
    has to sum over the input's last axes and the kernel's first, as `"btd,dhk->bthk"` and
    `"bthk,hkd->btd"` do.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        y = _by_rows(inputs, *matrix_and_bias(self))
        y = y if self.activation is None else self.activation(y)
        summed = _summed_axes(self)
        return ops.reshape(y, (*ops.shape(inputs)[:-summed], *self.kernel.shape[summed:]))

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> Tensor | None:
        return previous_mask

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:
        super().quantize(mode, type_check=False, config=config)


def matrix_and_bias(dense: Dense | EinsumDense) -> tuple[Tensor, Tensor | None]:
    """The weights of a `Dense` or `EinsumDense` as they are now, in the compute dtype.

    Args:
        dense: The layer, built and not quantized.

    Returns:
        A matrix `(D, D')` and a vector `(D',)`, None where there is no bias.
    """
    kernel = ops.cast(dense.kernel, dense.compute_dtype)
    if len(kernel.shape) > 2:
        kernel = ops.reshape(kernel, (math.prod(kernel.shape[: _summed_axes(dense)]), -1))
    if dense.bias is None:
        return kernel, None
    return kernel, ops.reshape(ops.cast(dense.bias, dense.compute_dtype), (-1,))


def projection(
    kernel: Tensor, bias: Tensor | None = None, loop: str | None = None
) -> Callable[[Tensor], Tensor]:
    """Returns the function `x ↦ x W + b`.

    In a loop over few rows, a product takes about as long as bringing W to the processor, and how
    W is laid out matters: that is done once, before the loop.

    - `"graph"`: bfloat16 units read pairs of inputs side by side. W lies by columns: a fifth to a
      third less for 32 rows.
    - `"xla"`: the product is `(Wᵀ xᵀ)ᵀ`: a third less for 32 rows.

    Args:
        kernel: W, shape `(D, D')`.
        bias: b, shape `(D',)`; or None.
        loop: What runs the loop that the function is for: `"graph"` (TensorFlow's executor),
            `"xla"`, or None where there is no loop.

    Returns:
        Function from a tensor of shape `(..., D)`, in `"xla"` `(N, D)`, in the kernel's dtype to
        one of `(..., D')`.

    Raises:
        ValueError: If `loop` is something else.
    """
    if loop not in (None, "graph", "xla"):
        raise ValueError(f'loop must be None, "graph" or "xla", received {loop!r}.')
    dtype = keras.backend.standardize_dtype(kernel.dtype)
    if loop and not is_exact(dtype):
        return _in_single(kernel, bias, loop)
    if loop == "xla":
        return _by_columns(kernel, bias)
    if loop == "graph" and dtype == "bfloat16":
        columns = ops.transpose(kernel)
        if bias is None:  # only beside a bias does TensorFlow keep how it lays out frozen weights
            bias = ops.zeros((kernel.shape[1],), kernel.dtype)

        def product(x):
            return ops.matmul(x, ops.transpose(columns))  # TensorFlow makes one product of it
    else:

        def product(x):
            return ops.matmul(x, kernel) if loop else multiply(x, kernel)

        if loop == "graph" and bias is not None:
            minus_bias = ops.negative(bias)
            # TensorFlow fuses a sum with the product, which for few rows takes longer than both.
            return lambda x: ops.subtract(product(x), minus_bias)

    # `ops.add` of a vector is a bias to Keras, which TensorFlow fuses with the product.
    return product if bias is None else lambda x: ops.add(product(x), bias)


def _in_single(kernel, bias, loop):
    """The projection in a loop where products of half precision are not exact: see `multiply`."""
    dtype = kernel.dtype
    product = projection(ops.cast(kernel, "float32"), loop=loop)

    def project(x):
        y = ops.cast(product(ops.cast(x, "float32")), dtype)
        return y if bias is None else ops.add(y, bias)

    return project


def _by_columns(kernel, bias):
    """The projection for XLA's loops, where that is the faster way."""
    height, width = kernel.shape
    columns, by_rows = ops.transpose(kernel), projection(kernel, bias)

    def project(x):
        if width < VOCABULARY * height and (x.shape[0] or 0) < FEWEST_ROWS:
            return by_rows(x)
        y = ops.matmul(columns, ops.transpose(x))
        # Something between product and transposition, or XLA swaps the factors back.
        y = ops.maximum(y, MIN_FLOAT) if bias is None else y + ops.expand_dims(bias, 1)
        return ops.transpose(y)

    return project


def _by_rows(x, kernel, bias):
    """`x W + b` of all positions as one matrix: `(N, D')`.

    Then product, bias and activation are one operation to TensorFlow.
    """
    return projection(kernel, bias)(ops.reshape(ops.cast(x, kernel.dtype), (-1, kernel.shape[0])))


def _summed_axes(dense):
    """Counts the axes of an `EinsumDense`'s input that its kernel sums over."""
    inputs, output = dense.equation.split("->")
    return sum(letter not in output for letter in inputs.split(",")[0])
