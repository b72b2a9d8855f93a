"""The parts of encoder and decoder: feed-forward network, residual connections, stack of layers.

Shapes: B batch, T length, D d_model, F d_ff.
"""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.kernels.layers import Dense, Dropout, LayerNormalization
from keras_transformer.layers.attention import AttendingLayer, MultiHeadAttention
from keras_transformer.layers.composite import CompositeLayer
from keras_transformer.layers.positions import Positions, make_positions
from keras_transformer.presets.options import EPSILON, POSITIVE, check_sizes, check_value
from keras_transformer.utils import Activation, Config, Initializer, Nested, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(CompositeLayer):
    """Transforms each position separately: `max(0, xW₁ + b₁)W₂ + b₂`.

    "Attention Is All You Need", §3.3, equation 2.

    Args:
        d_model: D, width of input and output.
        d_ff: F, width between the two projections.
        dropout: Rate of dropout on the inner activations.
        activation: Name of the inner activation, a function or a layer, which is called with
            `(B·T, d_ff)`.
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
        self.output_initializer = keras.initializers.get(
            self.kernel_initializer.clone() if output_initializer is None else output_initializer
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


class ResidualBlock(AttendingLayer):
    """Base of `EncoderLayer` and `DecoderLayer`.

    Holds their common arguments and wraps sublayers in residual connections (`residual`). A
    subclass with other sublayers overrides `make_attention`, `make_feed_forward` or `make_norm`;
    what is assigned instead is not saved.

    For the arguments, see `EncoderLayer` and `DecoderLayer`. `norm="post"` is
    `LayerNorm(x + Dropout(Sublayer(x)))` as in the paper (§3.1); `"pre"` is
    `x + Dropout(Sublayer(LayerNorm(x)))`.
    """

    bidirectional = True  # whether self-attention sees later positions: an encoder, not a decoder

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        norm: str = "post",
        activation: Activation = "relu",
        depth: int = 1,
        cross_attention: bool = True,
        positions: str | Positions | None = None,
        max_distance: int | None = None,
        epsilon: float = EPSILON,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_value("norm", norm, ("post", "pre"))
        check_value("epsilon", epsilon, POSITIVE)
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
        cross_attention = cross_attention and not self.bidirectional
        self.num_sublayers = 3 if cross_attention else 2
        self.self_attention = self.make_attention()
        self.self_attention_norm = self.make_norm()
        self.cross_attention = self.make_attention() if cross_attention else None
        self.cross_attention_norm = self.make_norm() if cross_attention else None
        self.activation = keras.activations.get(activation)
        self.feed_forward = self.make_feed_forward()
        self.feed_forward_norm = self.make_norm()
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        if self.positions and not isinstance(self.self_attention, MultiHeadAttention):
            raise ValueError(
                f"{type(self.self_attention).__name__} does not accept positions: return a "
                "kt.MultiHeadAttention from make_attention."
            )
        if self.positions:
            self.self_attention.positions = self.positions
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        if self.cross_attention and self.cross_attention_norm:
            if getattr(self.cross_attention, "positions", None):
                raise ValueError("Cross-attention takes no positions: pass them to the layer.")
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
        return LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy)

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
        names = ("d_model", "num_heads", "d_ff", "dropout", "norm", "depth", "epsilon")
        return super().get_config() | {
            **{name: getattr(self, name) for name in names},
            "activation": keras.activations.serialize(self.activation),
            "positions": keras.saving.serialize_keras_object(self.positions),
        }

    def _initializers(self):
        """Returns initializers with smaller variances than Glorot's.

        They are half of Glorot's for inner kernels, and 1/(number of sublayers in the stack) of it
        for output kernels, so that a deep stack starts near the identity. With Glorot's variances,
        the outputs of a post-norm encoder become equal at all positions before the decoder has
        learned to attend to them: on Multi30k, cross-attention of 4 + 4 layers was still uniform
        after 1,400 steps. 1/2 is the variance of query, key and value initialized as one matrix;
        the outputs follow Radford et al. (2019, GPT-2, §2.3).
        """
        output_scale = 1 / (self.depth * self.num_sublayers)
        output_initializer = keras.initializers.VarianceScaling(output_scale, "fan_avg", "uniform")
        return {
            "kernel_initializer": keras.initializers.VarianceScaling(0.5, "fan_avg", "uniform"),
            "output_initializer": output_initializer,
        }


class Stack(AttendingLayer):
    """Base of `Encoder` and `Decoder`, which have the arguments: a stack of N layers.

    The layers share a scheme of relative positions, except for weights that belong to one layer,
    see `Positions.for_layer`.
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
        cross_attention: bool = True,
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
        self.cross_attention = cross_attention and not bidirectional
        (self.num_layers,) = check_sizes(num_layers=num_layers)
        # A layer as activation, which may have weights.
        shared: Any = activation if isinstance(activation, keras.layers.Layer) else None
        options = {"depth": self.num_layers, "epsilon": epsilon, "dtype": self.dtype_policy}
        if not bidirectional:
            options["cross_attention"] = cross_attention
        self.layers = []
        for _ in range(self.num_layers):
            own = type(shared).from_config(shared.get_config()) if shared else activation
            layer = self.layer_class(d_model, num_heads, d_ff, dropout, norm, own, **options)
            self.layers.append(layer)
        if scheme:
            for layer in self.layers:
                layer.positions = scheme.for_layer()
        self.supports_masking = True
        self.d_model = self.layers[0].d_model
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: self.d_model})
        # Pre-norm leaves the residual stream unnormalized, so it is normalized once at the end.
        self.final_norm = self.layers[0].make_norm() if norm == "pre" else None

    def build(self, x_shape: Shape) -> None:
        for layer in self.layers:
            if not layer.built:
                layer.build(x_shape)
        if self.final_norm:
            self.final_norm.build(x_shape)
        self.finish_build()

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> Config:
        first = self.layers[0].get_config()
        names = ("d_model", "num_heads", "d_ff", "dropout", "norm", "activation")
        return super().get_config() | {
            **{name: first[name] for name in names},
            "num_layers": self.num_layers,
            "positions": self._get_positions(),
            "max_distance": self.max_distance,
            "epsilon": self.epsilon,
        }
