"""The position-wise feed-forward network.

Shapes: B batch, T length, D d_model, F d_ff.
"""

from typing import Any

import keras

from keras_transformer.kernels.layers import Dense, Dropout
from keras_transformer.layers.composite import CompositeLayer
from keras_transformer.utils import Activation, Config, Initializer, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(CompositeLayer):
    """Transforms each position separately: `max(0, xW₁ + b₁)W₂ + b₂`.

    "Attention Is All You Need", §3.3, equation 2.

    Args:
        d_model: D, width of input and output.
        d_ff: F, width between the two projections.
        dropout: Rate of dropout on the inner activations.
        activation: Name of the inner activation, or a function.
        kernel_initializer: Initializer of W₁ and W₂.
        output_initializer: Initializer of W₂, if it differs.

    Call arguments:
        x: Tensor of shape `(..., D)`.
        training: Whether to apply dropout.

    Returns:
        Tensor of shape `(..., D)`.

    Example:

    >>> FeedForward(d_model=512, d_ff=2048)(np.ones((2, 10, 512))).shape
    (2, 10, 512)
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        kernel_initializer: Initializer = "glorot_uniform",
        output_initializer: Initializer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model = d_model
        self.d_ff = d_ff
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        # An initializer object returns the same values each time: use a fresh copy.
        self.output_initializer = (
            self.kernel_initializer.clone()
            if output_initializer is None
            else keras.initializers.get(output_initializer)
        )
        policy = self.dtype_policy
        self.inner = Dense(
            d_ff, self.activation, kernel_initializer=self.kernel_initializer, dtype=policy
        )
        self.outer = Dense(d_model, kernel_initializer=self.output_initializer, dtype=policy)
        self.dropout_layer = Dropout(dropout, dtype=policy)

    def build(self, x_shape: Shape) -> None:
        self.inner.build((*x_shape[:-1], self.d_model))
        self.outer.build((*x_shape[:-1], self.d_ff))
        self.finish_build()

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        return self.outer(self.dropout_layer(self.inner(x), training=training))

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return (*x_shape[:-1], self.d_model)

    def get_config(self) -> Config:
        return super().get_config() | {
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "output_initializer": keras.initializers.serialize(self.output_initializer),
        }
