"""The encoder ("Attention Is All You Need", §3.1, left half of figure 1).

Shapes: B batch, S source length, D d_model, H heads.
"""

import keras

from keras_transformer.layers.masks import without_mask
from keras_transformer.layers.residual_block import ResidualBlock
from keras_transformer.layers.stack import Stack
from keras_transformer.typing import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderLayer(ResidualBlock):
    """Self-attention, then a feed-forward network, each with a residual connection.

    "Attention Is All You Need", §3.1, left half of figure 1.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward network.
        dropout: Share of each sublayer's output that is dropped in training.
        norm: `"post"` (the paper) or `"pre"`.
        activation: Of the feed-forward network.
        depth: Layers of the stack it belongs to; deeper ones start with smaller sublayers.
        positions, max_distance: What attention is told of where the tokens are, as
            `MultiHeadAttention` has them.

    Call arguments:
        x: Tensor of shape `(B, S, D)`.
        mask: Boolean `(B, S)`, True = may be attended to; taken from `x` when Keras carries one. Of
            three axes, `(B, S, S)`: which query, in the second one, may attend to which key.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.
        use_causal_mask: Whether position s may attend to positions 0 … s only.

    Returns:
        Tensor of shape `(B, S, D)`; with `return_attention_scores` also `(B, H, S, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, or `norm` or the mask is wrong, one of
            rank 2 for other rows or another length than those of `x` among them.

    Example:

    >>> layer = EncoderLayer(d_model=512, num_heads=8, d_ff=2048)
    >>> layer(np.ones((2, 10, 512))).shape
    (2, 10, 512)
    """

    num_sublayers = 2
    bidirectional = True

    def make_attention_sublayers(self) -> None:
        self.self_attention = self.make_attention()
        self.self_attention_norm = self.make_norm()

    def build(self, x_shape: Shape) -> None:
        self.tell_positions()
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        masks = _masks(mask, x)

        def attend(y):
            return self.self_attention(
                y,
                y,
                **masks,
                use_causal_mask=use_causal_mask,
                return_attention_scores=True,
                training=training,
            )

        def feed_forward(y):
            return self.feed_forward(y, training=training), None

        x = without_mask(x)
        x, scores = self.residual(x, self.self_attention_norm, attend, training)
        x, _ = self.residual(x, self.feed_forward_norm, feed_forward, training)
        return (x, scores) if return_attention_scores else x

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)


def _masks(mask, x):
    """The arguments of attention that an encoder's mask stands for."""
    if mask is None or len(mask.shape) == 3:
        return {"attention_mask": mask}
    pairs = zip(mask.shape, x.shape[:2], strict=False)
    if len(mask.shape) != 2 or any(None not in (m, n) and m not in (1, n) for m, n in pairs):
        raise ValueError(
            f"An encoder's mask must have shape (batch, length), received {tuple(mask.shape)} for "
            f"inputs {tuple(x.shape)}: say which query may attend to which key by (batch, queries, "
            "keys)."
        )
    return {"value_mask": mask}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(Stack):
    """A stack of `EncoderLayer`s ("Attention Is All You Need", §3.1).

    Pre-norm adds a final normalisation.

    Args:
        num_layers: N, number of layers.
        d_model, num_heads, d_ff, dropout, norm, activation: Of each `EncoderLayer`.
        positions: What attention is told of where the tokens are: `"relative"`, `"bucketed"`,
            `"rotary"`, `"disentangled"` or a `Positions`. What else an embedding adds changes
            nothing here.
        max_distance: Of a scheme that is named, where it has one.

    Call arguments:
        x: Embedded source, shape `(B, S, D)`.
        mask: Boolean `(B, S)`, True = may be attended to; taken from `x` when Keras carries one. Of
            three axes, `(B, S, S)`: which query, in the second one, may attend to which key.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.
        use_causal_mask: Whether position s may attend to positions 0 … s only.

    Returns:
        The memory, shape `(B, S, D)`; with `return_attention_scores` also a list of N tensors
        `(B, H, S, S)`.

    Raises:
        ValueError: If an argument is out of its range, or a mask is wrong.

    Example:

    >>> encoder = Encoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> encoder(np.ones((2, 10, 512))).shape
    (2, 10, 512)
    """

    layer_class = EncoderLayer

    def build(self, x_shape: Shape) -> None:
        self.build_layers(x_shape)

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
        x = self.finish(x)
        return (x, scores) if return_attention_scores else x

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)
