"""The base of encoder and decoder: N equal layers on top of each other."""

from typing import Any

import keras

from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.attending_layer import AttendingLayer
from keras_transformer.layers.residual_block import ResidualBlock
from keras_transformer.typing import Activation, Config, Shape, Tensor


class Stack(AttendingLayer):
    """Base of `Encoder` and `Decoder`.

    Args:
        num_layers: N.
        d_model, num_heads, d_ff, dropout, norm, activation: Of each layer.
        of_layers: Other arguments of each layer, by name.

    Raises:
        ValueError: If `num_layers` is not positive, or an argument of the layers is out of range.
    """

    layer_class: type[ResidualBlock]  # set by the subclass

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        norm: str = "post",
        activation: Activation = "relu",
        of_layers: Config | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_layers, d_model = check_sizes(num_layers=num_layers, d_model=d_model)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        self.num_layers = num_layers
        self.d_model = d_model
        self.layers = [
            self.layer_class(
                d_model,
                num_heads,
                d_ff,
                dropout,
                norm,
                activation,
                depth=num_layers,
                **of_layers or {},
                dtype=self.dtype_policy,
            )
            for _ in range(num_layers)
        ]
        # Pre-norm leaves the residual stream unnormalised, so it is normalised once at the end.
        self.final_norm = self.layers[0].make_norm() if norm == "pre" else None

    def build_layers(self, *shapes: Shape) -> None:
        """Builds every layer for inputs of these shapes."""
        for layer in self.layers:
            layer.build(*shapes)
        if self.final_norm:
            self.final_norm.build(shapes[0])
        self.built = True

    def finish(self, x: Tensor) -> Tensor:
        """Normalises the last layer's output where the layers do not."""
        return self.final_norm(x) if self.final_norm else x

    def get_config(self) -> Config:
        of_layers = self.layers[0].get_config()
        names = ("d_model", "num_heads", "d_ff", "dropout", "norm", "activation")
        config = super().get_config() | {"num_layers": self.num_layers}
        return config | {name: of_layers[name] for name in names}
