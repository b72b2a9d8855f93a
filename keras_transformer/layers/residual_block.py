"""What an encoder layer and a decoder layer have in common: sublayers with residual connections."""

import keras

from keras_transformer.layers.attending_layer import AttendingLayer
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization


class ResidualBlock(AttendingLayer):
    """Base of `EncoderLayer` and `DecoderLayer`.

    Holds their arguments and the one way in which a sublayer is wrapped (`residual`).

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

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, `norm` is unknown or `depth` is not
            positive.
    """

    num_sublayers = None  # set by the subclass

    def __init__(
        self,
        d_model,
        num_heads,
        d_ff,
        dropout=0.1,
        norm="post",
        activation="relu",
        depth=1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if norm not in ("post", "pre"):
            raise ValueError(f'norm must be "post" or "pre", received {norm!r}.')
        if depth < 1:
            raise ValueError(f"depth must be at least 1, received {depth}.")
        if num_heads < 1 or d_model % num_heads:
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
        self.make_attention_sublayers()
        self.feed_forward = FeedForward(
            d_model, d_ff, activation=activation, **self._initializers(), dtype=self.dtype_policy
        )
        self.feed_forward_norm = self.make_norm()
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def make_attention_sublayers(self):
        """Makes the sublayers that come before the feed-forward network."""
        raise NotImplementedError

    def make_attention(self):
        """A `MultiHeadAttention` whose heads share the width of the model."""
        key_dim = self.d_model // self.num_heads
        return MultiHeadAttention(
            self.num_heads, key_dim, **self._initializers(), dtype=self.dtype_policy
        )

    def make_norm(self):
        """A layer normalisation."""
        return LayerNormalization(dtype=self.dtype_policy)

    def residual(self, x, norm, sublayer, training=None):
        """Wraps a sublayer in residual connection, dropout and layer normalisation.

        Args:
            x: Tensor of shape `(..., D)`.
            norm: The layer normalisation that belongs to the sublayer, or its `stepper()`.
            sublayer: Function from `x` to its output and something else to hand on: attention
                weights, or the keys and values to remember.
            training: Whether to drop.

        Returns:
            Tensor of shape `(..., D)`, and what the sublayer handed on.
        """
        output, extra = sublayer(norm(x) if self.norm == "pre" else x)
        x = x + self.dropout_layer(output, training=training)
        return (x if self.norm == "pre" else norm(x)), extra

    def residual_feed_forward(self, x, training=None):
        """The last sublayer of both kinds of layer."""

        def feed_forward(y):
            return self.feed_forward(y, training=training), None

        return self.residual(x, self.feed_forward_norm, feed_forward, training)[0]

    def get_config(self):
        return super().get_config() | {
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
            "norm": self.norm,
            "activation": self.feed_forward.get_config()["activation"],
            "depth": self.depth,
        }

    def _initializers(self):
        """How kernels start: Glorot's variances by 1/2, at the outputs by 1/(sublayers of a stack).

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
