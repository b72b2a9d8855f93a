"""The encoder ("Attention Is All You Need", §3.1, left half of figure 1).

Shapes: B batch, S source length, D d_model, H heads.
"""

import keras
from keras import ops

from keras_transformer.layers.stack import ResidualBlock, Stack
from keras_transformer.utils import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualBlock):
    """Self-attention, then a feed-forward network, each with a residual connection.

    "Attention Is All You Need", §3.1, left half of figure 1.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward network.
        dropout: Rate of dropout on the output of each sublayer.
        norm: `"post"` (the paper) or `"pre"`.
        activation: Activation of the feed-forward network.
        depth: Number of layers in the stack; sublayers of deep stacks have smaller initial outputs.
        positions, max_distance: Scheme of relative positions, see `MultiHeadAttention`.
        epsilon: Added to the variance in layer normalization.

    Call arguments:
        x: Tensor of shape `(B, S, D)`.
        mask: Boolean `(B, S)`, True = may be attended to; defaults to the mask that Keras attaches
            to `x`. With three axes, `(B, S, S)`, True if the query may attend to the key.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to apply dropout.
        use_causal_mask: Whether position s may attend to positions 0 … s only.

    Returns:
        Tensor of shape `(B, S, D)`; with `return_attention_scores` also `(B, H, S, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, `norm` is unknown, or the mask does
            not fit `x`.

    Example:

    >>> layer = EncoderLayer(d_model=512, num_heads=8, d_ff=2048)
    >>> layer(np.ones((2, 10, 512))).shape
    (2, 10, 512)
    """

    # Keras expects the shapes of arguments of `call`.
    def build(self, x_shape: Shape) -> None:  # type: ignore[override]
        super().build(x_shape)

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        of_pairs = mask is not None and len(mask.shape) == 3

        def attend(y):
            return self.self_attention(
                y,
                y,
                value_mask=None if of_pairs else mask,
                attention_mask=mask if of_pairs else None,
                use_causal_mask=use_causal_mask,
                return_attention_scores=True,
                training=training,
            )

        x = ops.copy(x)  # without its mask, which Keras would pass to every layer called with it
        x, scores = self.residual(x, self.self_attention_norm, attend, training)
        x, _ = self.residual(
            x,
            self.feed_forward_norm,
            lambda y: (self.feed_forward(y, training=training), None),
            training,
        )
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """A stack of `EncoderLayer`s ("Attention Is All You Need", §3.1).

    Pre-norm adds a final normalization.

    Args:
        num_layers: N, number of layers.
        d_model, num_heads, d_ff, dropout, norm, activation: Arguments of each `EncoderLayer`.
        positions: Scheme of relative positions: `"relative"`, `"bucketed"`, `"rotary"`,
            `"disentangled"` or a `Positions`. Positional encodings that an embedding adds have no
            effect here.
        max_distance: Largest distance of a scheme that is given by name, if it has one.
        epsilon: Added to the variance in layer normalization.

    Call arguments:
        x: Embedded source, shape `(B, S, D)`.
        mask: Boolean `(B, S)`, True = may be attended to; defaults to the mask that Keras attaches
            to `x`. With three axes, `(B, S, S)`, True if the query may attend to the key.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to apply dropout.
        use_causal_mask: Whether position s may attend to positions 0 … s only.

    Returns:
        The memory (the encoder's output), shape `(B, S, D)`; with `return_attention_scores` also a
        list of N tensors `(B, H, S, S)`.

    Raises:
        ValueError: If an argument is out of range, or the mask does not fit `x`.

    Example:

    >>> encoder = Encoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> encoder(np.ones((2, 10, 512))).shape
    (2, 10, 512)
    """

    layer_class = EncoderLayer

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        scores = []
        for layer in self.layers:
            x, weights = layer(
                x,
                mask,
                return_attention_scores=True,
                training=training,
                use_causal_mask=use_causal_mask,
            )
            scores.append(weights)
        x = self.final_norm(x) if self.final_norm else x
        return (x, scores) if return_attention_scores else x
