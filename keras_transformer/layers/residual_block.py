"""The base of encoder and decoder layers: sublayers with residual connections."""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.kernels.dropout import Dropout
from keras_transformer.kernels.layer_normalization import LayerNormalization
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.attending_layer import AttendingLayer
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.positions import Positions, make_positions
from keras_transformer.typing import Activation, Config, Nested, Tensor


class ResidualBlock(AttendingLayer):
    """Base of `EncoderLayer` and `DecoderLayer`.

    Holds their arguments and the one way in which a sublayer is wrapped (`residual`). A subclass
    with other sublayers overrides `make_attention`, `make_feed_forward` or `make_norm`; so it can
    be saved and loaded. To try one out, a sublayer may also be assigned before the layer is built.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: F, inner width of the feed-forward network.
        dropout: Share of each sublayer's output that is dropped in training (§5.4).
        norm: `"post"`, `LayerNorm(x + Dropout(Sublayer(x)))` as in the paper (§3.1), or `"pre"`,
            `x + Dropout(Sublayer(LayerNorm(x)))`.
        activation: Of the feed-forward network.
        depth: Layers of the stack that this one belongs to: the outputs of its sublayers start
            the smaller, the deeper the stack.
        positions: What self-attention is told of where its tokens are: as `MultiHeadAttention` has
            it. Other names of positions, which an embedding adds, say nothing here.
        max_distance: Of a scheme that is named, where it has one.

    Raises:
        ValueError: If a size is not a positive integer, `num_heads` does not divide `d_model`,
            `norm` is unknown, or `positions` are not for such a layer.
    """

    num_sublayers: int  # set by the subclass
    bidirectional = True  # whether self-attention looks both ways
    self_attention: keras.layers.Layer
    _replaced: str | None = None  # name of a sublayer that was assigned

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        norm: str = "post",
        activation: Activation = "relu",
        depth: int = 1,
        positions: str | Positions | None = None,
        max_distance: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if norm not in ("post", "pre"):
            raise ValueError(f'norm must be "post" or "pre", received {norm!r}.')
        sizes = {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff, "depth": depth}
        d_model, num_heads, d_ff, depth = check_sizes(**sizes)
        if d_model % num_heads:
            raise ValueError(
                f"num_heads={num_heads} does not divide d_model={d_model}: every head takes an "
                "equal share of the width, so choose a divisor."
            )
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: d_model})
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout = dropout
        self.norm = norm
        self.depth = depth
        self.positions = make_positions(
            positions, max_distance, self.bidirectional, dtype=self.dtype_policy
        )
        self.make_attention_sublayers()
        self.activation = keras.activations.get(activation)
        self.feed_forward = self.make_feed_forward()
        self.feed_forward_norm = self.make_norm()
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def make_attention_sublayers(self) -> None:
        """Makes the sublayers that come before the feed-forward network."""
        raise NotImplementedError

    def make_attention(self) -> MultiHeadAttention:
        """A `MultiHeadAttention` whose heads share the width of the model."""
        key_dim = self.d_model // self.num_heads
        return MultiHeadAttention(
            self.num_heads, key_dim, **self._initializers(), dtype=self.dtype_policy
        )

    def tell_positions(self) -> None:
        """Hands the positions to self-attention, whichever that is; to be called as one builds.

        Raises:
            ValueError: If it is no `MultiHeadAttention`, which alone knows of them.
        """
        if self.positions:
            if not isinstance(self.self_attention, MultiHeadAttention):
                raise ValueError(
                    f"{type(self.self_attention).__name__} cannot be told "
                    f"{type(self.positions).__name__}: make_attention has to return a "
                    "kt.MultiHeadAttention, or leave the positions out."
                )
            self.self_attention.positions = self.positions

    def make_feed_forward(self) -> keras.layers.Layer:
        """A `FeedForward`, or another layer from `(B, T, D)` to as much, position by position."""
        return FeedForward(
            self.d_model,
            self.d_ff,
            activation=self.activation,
            **self._initializers(),
            dtype=self.dtype_policy,
        )

    def make_norm(self) -> keras.layers.Layer:
        """A layer normalisation."""
        return LayerNormalization(dtype=self.dtype_policy)

    def residual(
        self,
        x: Tensor,
        norm: Callable[[Tensor], Tensor],
        sublayer: Callable[[Tensor], tuple[Tensor, Nested]],
        training: bool | None = None,
    ) -> tuple[Tensor, Nested]:
        """Wraps a sublayer in residual connection, dropout and layer normalisation.

        Args:
            x: Tensor of shape `(..., D)`.
            norm: The layer normalisation that belongs to the sublayer, or another function.
            sublayer: Function from `x` to its output and something else to hand on: attention
                weights, or the keys and values to remember.
            training: Whether to drop.

        Returns:
            Tensor of shape `(..., D)`, and what the sublayer handed on.
        """
        output, extra = sublayer(norm(x) if self.norm == "pre" else x)
        x = x + self.dropout_layer(output, training=training)
        return (x if self.norm == "pre" else norm(x)), extra

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        super().__setattr__(name, value)
        if isinstance(old, keras.layers.Layer) and old is not value:
            self._tracker.untrack(old)  # Keras would go on counting its weights
            self._replaced = name

    def get_config(self) -> Config:
        if self._replaced:
            raise ValueError(
                f"{self._replaced} of {self.name!r} was put in by hand, which a configuration "
                "cannot say: override make_attention, make_feed_forward or make_norm in a "
                "registered subclass to save it."
            )
        return super().get_config() | {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
            "norm": self.norm,
            "activation": keras.activations.serialize(self.activation),
            "depth": self.depth,
            "positions": self.positions and self.positions.serialize_for(self),
        }

    def _initializers(self):
        """Starts kernels small: Glorot's variances by 1/2, outputs by 1/(sublayers of a stack).

        Sublayers that start small leave a deep stack near the identity. With Glorot's own
        variances, what a post-norm encoder says of all positions becomes the same before the
        decoder has learnt to read it: on Multi30k, the attention of 4 + 4 layers to the source was
        still uniform after 1,400 updates. 1/2 is the variance of query, key and value initialised
        as one matrix; the outputs follow Radford et al. (2019, GPT-2, §2.3).
        """

        def scaled(scale):
            return keras.initializers.VarianceScaling(scale, "fan_avg", "uniform")

        output = scaled(1 / (self.depth * self.num_sublayers))
        return {"kernel_initializer": scaled(0.5), "output_initializer": output}
