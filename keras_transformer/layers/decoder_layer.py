"""A layer of the decoder ("Attention Is All You Need", §3.1, right half of figure 1).

Shapes: B batch, S source length, T target length, D d_model, H heads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_transformer.layers.masks import without_mask
from keras_transformer.layers.residual_block import ResidualBlock
from keras_transformer.typing import Activation, Config, Nested, Shape, Tensor


class Sublayers(NamedTuple):
    """The parts of a `DecoderLayer`, as functions; without a memory, its attention to that is None.

    The first three take `(..., D)` and return as much, and something to hand on: attention weights,
    or the keys and values to remember. The norms take and return `(..., D)`.
    """

    attend_self: Callable[[Tensor], tuple[Tensor, Nested]]
    attend_memory: Callable[[Tensor], tuple[Tensor, Nested]] | None
    feed_forward: Callable[[Tensor], tuple[Tensor, Nested]]
    self_norm: Callable[[Tensor], Tensor]
    cross_norm: Callable[[Tensor], Tensor] | None
    feed_forward_norm: Callable[[Tensor], Tensor]


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualBlock):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    "Attention Is All You Need", §3.1, right half of figure 1.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward network.
        dropout: Share of each sublayer's output that is dropped in training.
        norm: `"post"` (the paper) or `"pre"`.
        activation: Of the feed-forward network.
        depth: Layers of the stack it belongs to; deeper ones start with smaller sublayers.
        cross_attention: Whether there is a memory to attend to. Without, it is the layer of a
            language model, called with `(x, x_mask)` alone.
        positions, max_distance: What self-attention is told of where the tokens are, as
            `MultiHeadAttention` has them.

    Call arguments:
        x: Tensor of shape `(B, T, D)`. Position t sees positions 0 … t only.
        memory: The encoder's output, shape `(B, S, D)`; left out where there is no cross-attention.
        x_mask: Boolean `(B, T)`, True = may be attended to; taken from `x` when Keras carries one.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.
        mask: Another name of `x_mask`: the one that Keras knows where `x` is the only tensor.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also the weights of the
        self-attention `(B, H, T, T)` and of the attention to the memory `(B, H, T, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, `norm` or a mask is wrong, or there is
            no memory, or one that nothing attends to.

    Example:

    >>> layer = DecoderLayer(d_model=512, num_heads=8, d_ff=2048)
    >>> layer(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)
    """

    bidirectional = False

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
        **kwargs: Any,
    ) -> None:
        # Known before the sublayers are made, which the base does.
        self.num_sublayers = 3 if cross_attention else 2
        super().__init__(d_model, num_heads, d_ff, dropout, norm, activation, depth, **kwargs)

    def make_attention_sublayers(self) -> None:
        self.self_attention = self.make_attention()
        self.self_attention_norm = self.make_norm()
        attends_memory = self.num_sublayers == 3
        self.cross_attention = self.make_attention() if attends_memory else None
        self.cross_attention_norm = self.make_norm() if attends_memory else None

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        memory_shape = x_shape if memory_shape is None else memory_shape
        self.tell_positions()
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        if self.cross_attention and self.cross_attention_norm:
            if getattr(self.cross_attention, "positions", None):
                raise ValueError(
                    f"The attention of {self.name!r} to the memory has positions, which are for "
                    "self-attention: give them to the layer, not to what make_attention returns."
                )
            self.cross_attention.build(x_shape, memory_shape)
            self.cross_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)
        self.built = True

    def __call__(self, *args: Any, **kwargs: Any) -> Nested:
        return super().__call__(*in_place(args, self.cross_attention), **kwargs)

    def call(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        check_memory(self, self.cross_attention, memory, x_mask)
        x_mask = mask if x_mask is None else x_mask

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
        of_memory = attend_memory if self.cross_attention else None
        sublayers = Sublayers(attend_self, of_memory, feed_forward, *norms)
        x, *scores = self.connect(without_mask(x), sublayers, training)
        scores = scores if self.cross_attention else scores[:1]
        return (x, *scores) if return_attention_scores else x

    def connect(
        self, x: Tensor, sublayers: Sublayers, training: bool | None = None
    ) -> tuple[Tensor, Nested, Nested]:
        """Connects the sublayers as figure 1 does, each with its residual connection.

        Args:
            x: Tensor of shape `(..., D)`.
            sublayers: `Sublayers`.
            training: Whether to drop.

        Returns:
            Tensor of shape `(..., D)`, and what the two attentions handed on, None for one that
            there is not.
        """
        cross = None
        x, own = self.residual(x, sublayers.self_norm, sublayers.attend_self, training)
        if sublayers.attend_memory and sublayers.cross_norm:
            x, cross = self.residual(x, sublayers.cross_norm, sublayers.attend_memory, training)
        x, _ = self.residual(x, sublayers.feed_forward_norm, sublayers.feed_forward, training)
        return x, own, cross

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> Config:
        return super().get_config() | {"cross_attention": self.cross_attention is not None}


def in_place(args: tuple[Any, ...], attends_memory: object) -> tuple[Any, ...]:
    """Arguments by position, with a place for the memory where there is none: `(x, x_mask)`."""
    return args if attends_memory or len(args) < 2 else (args[0], None, *args[1:])


def check_memory(
    layer: keras.layers.Layer, attends_memory: object, memory: Tensor | None, x_mask: Tensor | None
) -> None:
    """Refuses a memory that nothing would attend to, and the lack of one.

    Raises:
        ValueError: If there is one of them.
    """
    if attends_memory and memory is None:
        raise ValueError(
            f"{layer.name!r} attends to a memory and received none: call it with (x, memory), or "
            "make it with cross_attention=False."
        )
    if not attends_memory and (memory is not None or len(getattr(x_mask, "shape", ())) == 3):
        raise ValueError(
            f"{layer.name!r} has no cross-attention and received a memory: call it with (x, x_mask)"
            " alone."
        )
