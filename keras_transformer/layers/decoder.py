"""The decoder ("Attention Is All You Need", §3.1, right half of figure 1).

Shapes: B batch, S source length, T target length, D d_model, H heads.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras

from keras_transformer.layers.masks import without_mask
from keras_transformer.layers.residual_block import ResidualBlock
from keras_transformer.layers.stack import Stack
from keras_transformer.typing import Nested, Shape, Tensor


class Sublayers(NamedTuple):
    """The parts of a `DecoderLayer`, as functions.

    The first three take `(..., D)` and return as much, and something to hand on: attention weights,
    or the keys and values to remember. The norms take and return `(..., D)`.
    """

    attend_self: Callable[[Tensor], tuple[Tensor, Nested]]
    attend_memory: Callable[[Tensor], tuple[Tensor, Nested]]
    feed_forward: Callable[[Tensor], tuple[Tensor, Nested]]
    self_norm: Callable[[Tensor], Tensor]
    cross_norm: Callable[[Tensor], Tensor]
    feed_forward_norm: Callable[[Tensor], Tensor]


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualBlock):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward network.
        dropout: Share of each sublayer's output that is dropped in training.
        norm: `"post"` (the paper) or `"pre"`.
        activation: Of the feed-forward network.
        depth: Layers of the stack it belongs to; deeper ones start with smaller sublayers.

    Call arguments:
        x: Tensor of shape `(B, T, D)`. Position t sees positions 0 … t only.
        memory: The encoder's output, shape `(B, S, D)`.
        x_mask: Boolean `(B, T)`, True = may be attended to; taken from `x` when Keras carries one.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also the weights of the
        self-attention `(B, H, T, T)` and of the attention to the memory `(B, H, T, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, or `norm` or a mask is wrong.

    Example:

    >>> layer = DecoderLayer(d_model=512, num_heads=8, d_ff=2048)
    >>> layer(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)
    """

    num_sublayers = 3

    def make_attention_sublayers(self) -> None:
        self.self_attention = self.make_attention()
        self.self_attention_norm = self.make_norm()
        self.cross_attention = self.make_attention()
        self.cross_attention_norm = self.make_norm()

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        memory_shape = x_shape if memory_shape is None else memory_shape
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.cross_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        memory: Tensor,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        def attend_self(y):
            return self.self_attention(
                y,
                y,
                value_mask=x_mask,
                use_causal_mask=True,
                return_attention_scores=True,
                training=training,
            )

        def attend_memory(y):
            return self.cross_attention(
                y, memory, value_mask=memory_mask, return_attention_scores=True, training=training
            )

        def feed_forward(y):
            return self.feed_forward(y, training=training), None

        norms = self.self_attention_norm, self.cross_attention_norm, self.feed_forward_norm
        sublayers = Sublayers(attend_self, attend_memory, feed_forward, *norms)
        x, self_scores, cross_scores = self.connect(without_mask(x), sublayers, training)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def connect(
        self, x: Tensor, sublayers: Sublayers, training: bool | None = None
    ) -> tuple[Tensor, Nested, Nested]:
        """Connects the sublayers as figure 1 does, each with its residual connection.

        Args:
            x: Tensor of shape `(..., D)`.
            sublayers: `Sublayers`.
            training: Whether to drop.

        Returns:
            Tensor of shape `(..., D)`, and what the two attentions handed on.
        """
        x, own = self.residual(x, sublayers.self_norm, sublayers.attend_self, training)
        x, cross = self.residual(x, sublayers.cross_norm, sublayers.attend_memory, training)
        x, _ = self.residual(x, sublayers.feed_forward_norm, sublayers.feed_forward, training)
        return x, own, cross

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of `DecoderLayer`s, always causal; pre-norm adds a final normalisation.

    Args:
        num_layers: N, number of layers.
        d_model, num_heads, d_ff, dropout, norm, activation: Of each `DecoderLayer`.

    Call arguments:
        x: Embedded target, shape `(B, T, D)`.
        memory: The encoder's output, shape `(B, S, D)`.
        x_mask: Boolean `(B, T)`, True = may be attended to; taken from `x` when Keras carries one.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also two lists of N tensors:
        `(B, H, T, T)` and `(B, H, T, S)`.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> decoder(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)
    """

    layer_class = DecoderLayer

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        self.build_layers(x_shape, x_shape if memory_shape is None else memory_shape)

    def call(
        self,
        x: Tensor,
        memory: Tensor,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor], list[Tensor]]:
        self_scores, cross_scores = [], []
        for layer in self.layers:
            x, of_self, of_memory = layer(
                x, memory, x_mask, memory_mask, return_attention_scores=True, training=training
            )
            self_scores.append(of_self)
            cross_scores.append(of_memory)
        x = self.finish(x)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)
