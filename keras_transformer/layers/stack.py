"""The base of encoder and decoder: N equal layers on top of each other."""

from typing import Any

import keras

from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.attending_layer import AttendingLayer
from keras_transformer.layers.positions import Positions, make_positions
from keras_transformer.layers.residual_block import ResidualBlock
from keras_transformer.typing import Activation, Config, Shape, Tensor


class Stack(AttendingLayer):
    """Base of `Encoder` and `Decoder`.

    Args:
        num_layers: N.
        d_model, num_heads, d_ff, dropout, norm, activation: Of each layer.
        of_layers: Other arguments of each layer, by name.
        positions: What self-attention is told of where the tokens are: the name of a scheme, or a
            `Positions`. The layers share what they do not have one each of.
        max_distance: Of a scheme that is named, where it has one.

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
        positions: str | Positions | Config | None = None,
        max_distance: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        bidirectional = self.layer_class.bidirectional
        scheme = make_positions(positions, max_distance, bidirectional, dtype=self.dtype_policy)
        if scheme and not isinstance(positions, str):
            scheme.users += 1
            positions = scheme
        # Out of sight in a function: its layers are those that hold weights.
        self._positions = lambda: positions
        self.max_distance = max_distance
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
                # Named only where it says something: layers of users' own need not know it.
                **({"positions": scheme.of_layer()} if scheme else {}),
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
        positions = self._positions()
        if isinstance(positions, Positions):
            positions = positions.serialize_for(self)
        config |= {"positions": positions, "max_distance": self.max_distance}
        return config | {name: of_layers[name] for name in names}
