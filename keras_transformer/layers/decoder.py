"""The decoder ("Attention Is All You Need", §3.1, right half of figure 1).

Shapes: B batch, S source length, T target length, D d_model, H heads.
"""

import keras
from keras import ops

from keras_transformer.layers import decoder_step
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.stack import ResidualBlock, Stack
from keras_transformer.utils import Config, Shape, State, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualBlock):
    """Causal self-attention, cross-attention, then a feed-forward network.

    "Attention Is All You Need", §3.1, right half of figure 1.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward network.
        dropout: Rate of dropout on the output of each sublayer.
        norm: `"post"` (the paper) or `"pre"`.
        activation: Activation of the feed-forward network.
        depth: Number of layers in the stack; sublayers of deep stacks have smaller initial outputs.
        cross_attention: Whether the layer attends to the encoder's output, by default. Without, it
            is the layer of a language model, called with `x` and `x_mask=`.
        positions, max_distance: Scheme of relative positions of the self-attention, see
            `MultiHeadAttention`.
        epsilon: Added to the variance in layer normalization.

    Call arguments:
        x: Tensor of shape `(B, T, D)`. Position t sees positions 0 … t only.
        memory: The encoder's output, shape `(B, S, D)`; None without cross-attention.
        x_mask: Boolean `(B, T)`, True = may be attended to; defaults to the mask that Keras
            attaches to `x`.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to apply dropout.
        mask: Another name of `x_mask`: the one that Keras passes if `x` is the only tensor.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also the weights of the
        self-attention `(B, H, T, T)` and of the cross-attention `(B, H, T, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, `norm` is unknown, a mask does not
            fit, or the memory is missing, or passed without cross-attention.

    Example:

    >>> layer = DecoderLayer(d_model=512, num_heads=8, d_ff=2048)
    >>> layer(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)
    """

    bidirectional = False

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
        _check_memory(self, memory)
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

        x = ops.copy(x)  # without its mask, which Keras would pass to every layer called with it
        x, weights = self.residual(x, self.self_attention_norm, attend_self, training)
        scores = [weights]
        if self.cross_attention and self.cross_attention_norm:
            x, weights = self.residual(x, self.cross_attention_norm, attend_memory, training)
            scores.append(weights)
        x, _ = self.residual(
            x,
            self.feed_forward_norm,
            lambda y: (self.feed_forward(y, training=training), None),
            training,
        )
        return (x, *scores) if return_attention_scores else x

    def get_config(self) -> Config:
        return super().get_config() | {"cross_attention": self.cross_attention is not None}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of `DecoderLayer`s, always causal ("Attention Is All You Need", §3.1).

    Pre-norm adds a final normalization.

    Without cross-attention it is the decoder of a language model: called with `x` and `x_mask=`;
    decoding starts with `initial_state(batch_size)`.

    Args:
        num_layers: N, number of layers.
        d_model, num_heads, d_ff, dropout, norm, activation: Arguments of each `DecoderLayer`.
        cross_attention: Whether the layers attend to the encoder's output.
        positions: Scheme of relative positions of the self-attention: `"relative"`, `"bucketed"`,
            `"rotary"`, `"disentangled"` or a `Positions`. Positional encodings that an embedding
            adds have no effect here. Cross-attention uses no positional information.
        max_distance: Largest distance of a scheme that is given by name, if it has one.
        epsilon: Added to the variance in layer normalization.

    Call arguments:
        x: Embedded target, shape `(B, T, D)`.
        memory: The encoder's output, shape `(B, S, D)`; None without cross-attention.
        x_mask: Boolean `(B, T)`, True = may be attended to; defaults to the mask that Keras
            attaches to `x`.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to apply dropout.
        mask: Another name of `x_mask`: the one that Keras passes if `x` is the only tensor.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also two lists of N tensors:
        `(B, H, T, T)` and, with cross-attention, `(B, H, T, S)`.

    Raises:
        ValueError: If an argument is out of range, a mask does not fit, or the memory is missing,
            or passed without cross-attention.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> decoder(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)

    A language model, all positions at once and the first two one by one:

    >>> decoder = Decoder(6, d_model=512, num_heads=8, d_ff=2048, cross_attention=False)
    >>> x = np.ones((2, 7, 512), "float32")
    >>> decoder(x).shape
    (2, 7, 512)
    >>> state = decoder.initial_state(batch_size=2)
    >>> y, state = decoder.step(x[:, 0], 0, state)
    >>> y, state = decoder.step(x[:, 1], 1, state)
    >>> y.shape
    (2, 512)
    """

    layer_class = DecoderLayer

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        for layer in self.layers:
            layer.build(x_shape, memory_shape)
        super().build(x_shape)

    def call(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor | list[Tensor], ...]:
        x_mask = mask if x_mask is None else x_mask
        options = {"return_attention_scores": True, "training": training}
        scores = []
        for layer in self.layers:
            x, *weights = layer(x, memory, x_mask, memory_mask, **options)
            scores.append(weights)
        x = self.final_norm(x) if self.final_norm else x
        return (x, *map(list, zip(*scores, strict=True))) if return_attention_scores else x

    def initial_state(
        self,
        batch_size: int | Tensor | None = None,
        length: int | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> State:
        """Prepares decoding position by position; projects the memory, if there is one.

        Args:
            batch_size: B, an int or a scalar integer tensor; defaults to that of the memory.
            length: Number of steps to allocate. By default the state grows with every step, which
                is faster, but does not work under XLA (`tf.function(jit_compile=True)`), where
                shapes must not change.
            memory: The encoder's output, shape `(B, S, D)`, with cross-attention.
            memory_mask: Boolean `(B, S)`; defaults to the mask attached to the memory.

        Returns:
            A nested structure of tensors, batch first, for `step`.

        Raises:
            ValueError: If the memory is missing, or passed without cross-attention; or if this
                layer or one of its sublayers overrides `call`, which `step` does not use.
        """
        _check_memory(self, memory)
        if batch_size is None and memory is None:
            raise ValueError("initial_state needs batch_size or memory, received neither.")
        if not self.built:
            self.build((None, None, self.d_model), None if memory is None else memory.shape)
        if memory_mask is None:
            memory_mask = getattr(memory, "_keras_mask", None)
        _check_steps(self)
        return decoder_step.initial_state(self, batch_size, length, memory, memory_mask)

    def step(self, x: Tensor, position: int | Tensor, state: State) -> tuple[Tensor, State]:
        """Computes one more position.

        Args:
            x: The embedded token at `position`, shape `(B, D)`; or those at P positions from there
                on, `(B, P, D)`.
            position: Python int or scalar integer tensor.
            state: The state from `initial_state` or from the previous step.

        Returns:
            Tensor of the shape of `x`, equal to that of a full pass at these positions; and the
            next state.
        """
        return decoder_step.DecoderStep(self)(x, position, state)

    def get_config(self) -> Config:
        return super().get_config() | {"cross_attention": self.cross_attention}


def _check_memory(layer, memory):
    """Checks that a decoder receives the encoder's output if and only if it has cross-attention."""
    if bool(layer.cross_attention) != (memory is not None):
        has, received = ("has", "no") if layer.cross_attention else ("has no", "a")
        raise ValueError(f"{layer.name!r} {has} cross-attention but received {received} memory.")


def _check_steps(decoder):
    """Checks that all layers compute what the step by step decoding assumes."""
    bases = [(decoder, Decoder), *((layer, DecoderLayer) for layer in decoder.layers)]
    for layer in decoder.layers:
        attentions = filter(None, (layer.self_attention, layer.cross_attention))
        bases += [(attention, MultiHeadAttention) for attention in attentions]
    for layer, base in bases:
        if not isinstance(layer, base) or type(layer).call is not base.call:
            method = "attend" if base is MultiHeadAttention else "make_attention"
            raise ValueError(
                f"{type(layer).__name__} ({layer.name!r}) does not use {base.__name__}.call, so "
                f"it cannot be decoded step by step: override {method} of {base.__name__} "
                "instead, or decode the whole prefix each time."
            )
