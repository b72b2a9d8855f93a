"""Base classes of encoder and decoder: a layer with residual connections, and a stack of layers."""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.kernels.layers import Dropout, LayerNormalization
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.attention import AttendingLayer, MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.positions import Positions, make_positions
from keras_transformer.presets.options import EPSILON, check_value
from keras_transformer.utils import Activation, Config, Nested, Shape, Tensor


class ResidualBlock(AttendingLayer):
    """Base of `EncoderLayer` and `DecoderLayer`.

    Holds their common arguments and wraps sublayers in residual connections (`residual`). A
    subclass with other sublayers overrides `make_attention`, `make_feed_forward` or `make_norm`;
    then it can be saved and loaded. For an experiment, a sublayer may also be assigned before the
    layer is built; Keras raises an error afterwards.

    For the arguments, see `EncoderLayer` and `DecoderLayer`. `norm="post"` is
    `LayerNorm(x + Dropout(Sublayer(x)))` as in the paper (§3.1); `"pre"` is
    `x + Dropout(Sublayer(LayerNorm(x)))`.
    """

    bidirectional = True  # whether self-attention sees later positions

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        norm: str = "post",
        activation: Activation = "relu",
        depth: int = 1,
        cross_attention: bool = False,
        positions: str | Positions | None = None,
        max_distance: int | None = None,
        epsilon: float = EPSILON,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_value("norm", norm, ("post", "pre"))
        sizes = {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff, "depth": depth}
        d_model, num_heads, d_ff, depth = check_sizes(**sizes)
        if d_model % num_heads:
            raise ValueError(
                f"num_heads={num_heads} does not divide d_model={d_model}: choose a divisor, since "
                "all heads have the same width."
            )
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.norm = norm
        self.depth = depth
        self.epsilon = epsilon
        self.positions = make_positions(
            positions, max_distance, self.bidirectional, dtype=self.dtype_policy
        )
        self.num_sublayers = 3 if cross_attention else 2
        self.self_attention = self.make_attention()
        self.self_attention_norm = self.make_norm()
        self.cross_attention = self.make_attention() if cross_attention else None
        self.cross_attention_norm = self.make_norm() if cross_attention else None
        self.activation = keras.activations.get(activation)
        self.feed_forward = self.make_feed_forward()
        self.feed_forward_norm = self.make_norm()
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self._created = self._sublayer_ids()

    def build_sublayers(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        """Builds the layer; Keras expects `build` to have the arguments of `call`."""
        if self.positions:
            if not isinstance(self.self_attention, MultiHeadAttention):
                raise ValueError(
                    f"{type(self.self_attention).__name__} does not accept "
                    f"{type(self.positions).__name__}: return a kt.MultiHeadAttention from "
                    "make_attention, or omit positions."
                )
            self.self_attention.positions = self.positions
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        if self.cross_attention and self.cross_attention_norm:
            if getattr(self.cross_attention, "positions", None):
                raise ValueError(
                    f"The cross-attention of {self.name!r} has positions, which are for "
                    "self-attention: pass them to the layer, not to the attention that "
                    "make_attention returns."
                )
            self.cross_attention.build(x_shape, memory_shape or x_shape)
            self.cross_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)
        self.finish_build()

    def make_attention(self) -> MultiHeadAttention:
        """Returns a `MultiHeadAttention` whose heads divide the width of the model."""
        key_dim = self.d_model // self.num_heads
        return MultiHeadAttention(
            self.num_heads, key_dim, **self._initializers(), dtype=self.dtype_policy
        )

    def make_feed_forward(self) -> keras.layers.Layer:
        """Returns a `FeedForward`, or another layer that maps each position of `(B, T, D)`."""
        return FeedForward(
            self.d_model,
            self.d_ff,
            activation=self.activation,
            **self._initializers(),
            dtype=self.dtype_policy,
        )

    def make_norm(self) -> keras.layers.Layer:
        """Returns a layer normalization."""
        return LayerNormalization(self.epsilon, dtype=self.dtype_policy)

    def residual(
        self,
        x: Tensor,
        norm: Callable[[Tensor], Tensor],
        sublayer: Callable[[Tensor], tuple[Tensor, Nested]],
        training: bool | None = None,
    ) -> tuple[Tensor, Nested]:
        """Wraps a sublayer in residual connection, dropout and layer normalization.

        Args:
            x: Tensor of shape `(..., D)`.
            norm: The layer normalization that belongs to the sublayer, or an equal function.
            sublayer: Function from `x` to its output and a second result, which is returned too:
                attention weights, or cached keys and values.
            training: Whether to apply dropout.
        """
        output, extra = sublayer(norm(x) if self.norm == "pre" else x)
        x = x + self.dropout_layer(output, training=training)
        return (x if self.norm == "pre" else norm(x)), extra

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> Config:
        current = self._sublayer_ids()
        replaced = [name for name, created in self._created.items() if current[name] != created]
        if replaced:
            raise ValueError(
                f"{replaced[0]} of {self.name!r} was replaced by assignment, which get_config "
                "cannot serialize: override make_attention, make_feed_forward or make_norm in a "
                "registered subclass instead."
            )
        return super().get_config() | {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
            "norm": self.norm,
            "activation": keras.activations.serialize(self.activation),
            "depth": self.depth,
            "positions": self.positions and keras.saving.serialize_keras_object(self.positions),
            "epsilon": self.epsilon,
        }

    def _sublayer_ids(self):
        """Returns the `id` of each sublayer by the name of its attribute."""
        attributes = vars(self).items()
        return {name: id(value) for name, value in attributes if isinstance(value, keras.Layer)}

    def _initializers(self):
        """Returns initializers with smaller variances than Glorot's.

        They are half of Glorot's for inner kernels, and 1/(number of sublayers in the stack) of it
        for output kernels, so that a deep stack starts near the identity. With Glorot's variances,
        the outputs of a post-norm encoder become equal at all positions before the decoder has
        learned to attend to them: on Multi30k, cross-attention of 4 + 4 layers was still uniform
        after 1,400 steps. 1/2 is the variance of query, key and value initialized as one matrix;
        the outputs follow Radford et al. (2019, GPT-2, §2.3).
        """

        def scaled(scale):
            return keras.initializers.VarianceScaling(scale, "fan_avg", "uniform")

        output = scaled(1 / (self.depth * self.num_sublayers))
        return {"kernel_initializer": scaled(0.5), "output_initializer": output}


class Stack(AttendingLayer):
    """Base of `Encoder` and `Decoder`, which have the arguments: a stack of N layers.

    `layer_kwargs` are other arguments of each layer. The layers share a scheme of relative
    positions, except for weights that belong to one layer, see `Positions.for_layer`.
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
        layer_kwargs: Config | None = None,
        positions: str | Positions | Config | None = None,
        max_distance: int | None = None,
        epsilon: float = EPSILON,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        bidirectional = self.layer_class.bidirectional
        scheme = make_positions(positions, max_distance, bidirectional, dtype=self.dtype_policy)
        if scheme and not isinstance(positions, str):
            positions = keras.saving.serialize_keras_object(scheme)
        self._get_positions = lambda: positions  # hidden from Keras, which would wrap a dict
        self.max_distance = max_distance
        self.epsilon = epsilon
        (self.num_layers,) = check_sizes(num_layers=num_layers)
        # Passed only if needed: users' own layers may not accept them.
        optional: Config = {"epsilon": epsilon} if epsilon != EPSILON else {}
        self.layers = [
            self.layer_class(
                d_model,
                num_heads,
                d_ff,
                dropout,
                norm,
                activation,
                depth=self.num_layers,
                **layer_kwargs or {},
                **optional,
                dtype=self.dtype_policy,
            )
            for _ in range(self.num_layers)
        ]
        if scheme:
            for layer in self.layers:
                layer.positions = scheme.for_layer()
        self.supports_masking = True
        self.d_model = self.layers[0].d_model
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: self.d_model})
        # Pre-norm leaves the residual stream unnormalized, so it is normalized once at the end.
        self.final_norm = self.layers[0].make_norm() if norm == "pre" else None

    def build_layers(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        """Builds every layer for inputs of these shapes."""
        shapes = (x_shape,) if memory_shape is None else (x_shape, memory_shape)
        for layer in self.layers:
            layer.build(*shapes)
        if self.final_norm:
            self.final_norm.build(x_shape)
        self.finish_build()

    def apply_final_norm(self, x: Tensor) -> Tensor:
        """Normalizes the output of the last layer if the layers are pre-norm."""
        return self.final_norm(x) if self.final_norm else x

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> Config:
        first = self.layers[0].get_config()
        names = ("d_model", "num_heads", "d_ff", "dropout", "norm", "activation")
        return (
            super().get_config()
            | {"num_layers": self.num_layers}
            | {"positions": self._get_positions(), "max_distance": self.max_distance}
            | {"epsilon": self.epsilon}
            | {name: first[name] for name in names}
        )
