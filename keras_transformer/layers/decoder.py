"""The decoder ("Attention Is All You Need", §3.1, right half of figure 1).

Shapes: B batch, S source length, T target length, D d_model, H heads.
"""

from types import ModuleType
from typing import Any

import keras

from keras_transformer.layers import decoder_state, decoder_step
from keras_transformer.layers.decoder_layer import DecoderLayer, check_memory, in_place
from keras_transformer.layers.stack import Stack
from keras_transformer.typing import Activation, Config, Nested, Shape, State, Step, Tensor

__all__ = ["Decoder", "DecoderLayer"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of `DecoderLayer`s, always causal ("Attention Is All You Need", §3.1).

    Pre-norm adds a final normalisation.

    Without cross-attention it is a language model's: called with `(x, x_mask)` alone, and decoding
    begins with `initial_state(batch_size)`.

    Args:
        num_layers: N, number of layers.
        d_model, num_heads, d_ff, dropout, norm, activation: Of each `DecoderLayer`.
        cross_attention: Whether there is a memory to attend to.
        positions: What self-attention is told of where tokens are: `"relative"`, `"bucketed"`,
            `"rotary"`, `"disentangled"`, `"alibi"` or a `Positions`. What else an embedding adds
            changes nothing here. Attention to the memory is told nothing.
        max_distance: Of a scheme that is named, where it has one.

    Call arguments:
        x: Embedded target, shape `(B, T, D)`.
        memory: The encoder's output, shape `(B, S, D)`; left out where there is no cross-attention.
        x_mask: Boolean `(B, T)`, True = may be attended to; taken from `x` when Keras carries one.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.
        mask: Another name of `x_mask`: the one that Keras knows where `x` is the only tensor.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also two lists of N tensors:
        `(B, H, T, T)` and `(B, H, T, S)`, the latter with cross-attention only.

    Raises:
        ValueError: If an argument is out of its range, a mask is wrong, or there is no memory, or
            one that nothing attends to.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> decoder(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)

    A language model's, all positions at once and the first two one by one:

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
        **kwargs: Any,
    ) -> None:
        self.cross_attention = cross_attention
        # Named only where it says something: layers of users' own need not know it.
        of_layers = None if cross_attention else {"cross_attention": False}
        of_each = d_model, num_heads, d_ff, dropout, norm, activation
        super().__init__(num_layers, *of_each, of_layers=of_layers, **kwargs)

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        self.build_layers(x_shape, x_shape if memory_shape is None else memory_shape)

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
    ) -> Tensor | tuple[Tensor | list[Tensor], ...]:
        check_memory(self, self.cross_attention, memory, x_mask)
        x_mask = mask if x_mask is None else x_mask
        inputs = (memory, x_mask, memory_mask) if self.cross_attention else (x_mask,)
        scores = []
        for layer in self.layers:
            x, *of_layer = layer(x, *inputs, return_attention_scores=True, training=training)
            scores.append(of_layer)
        x = self.finish(x)
        return (x, *map(list, zip(*scores, strict=True))) if return_attention_scores else x

    def initial_state(
        self,
        batch_size: int | Tensor | None = None,
        length: int | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> State:
        """Prepares decoding position by position: projects the memory once, where there is one.

        Args:
            batch_size: B, an int or a scalar integer tensor; with a memory, that of the memory.
            length: Number of steps to make room for. Else the state grows with every step, which
                takes less time, but not under XLA (`tf.function(jit_compile=True)`): there, shapes
                must not change.
            memory: The encoder's output, shape `(B, S, D)`, with cross-attention.
            memory_mask: Boolean `(B, S)`.

        Returns:
            A nested structure of tensors, batch first, for `step`.

        Raises:
            ValueError: If there is no memory, or one that nothing attends to; or the layer or one
                of its own has a `call` that a step would not follow.
        """
        check_memory(self, self.cross_attention, memory, None)
        if batch_size is None and memory is None:
            raise ValueError("A state needs the batch_size that it is for, received None.")
        if not self.built:
            self.build((None, None, self.d_model))
        decoder_state.refuse_other_call(self, Decoder)
        return decoder_state.initial_state(self, batch_size, length, memory, memory_mask)

    def step(self, x: Tensor, position: int | Tensor, state: State) -> tuple[Tensor, State]:
        """Computes one more position.

        Args:
            x: The embedded token at `position`, shape `(B, D)`.
            position: Python int or scalar integer tensor.
            state: What `initial_state` or the step before returned.

        Returns:
            Tensor of shape `(B, D)`, as the call has it at this position, and the next state.
        """
        return self.make_step()(x, position, state)

    def make_step(
        self, loop: str = "graph", operations: decoder_step.Operations | ModuleType | None = None
    ) -> Step:
        """Returns a function that does what `step` does, for loops.

        Kernels are joined, cast and laid out now, once: the function belongs to the weights as they
        are now.

        Args:
            loop: What runs the loop: `"graph"` (TensorFlow's executor) or `"xla"`.
            operations: Has other `multiply` and `softmax`, if they suit that loop better.
        """
        return decoder_step.make_step(self, loop, operations)

    def compute_output_shape(self, x_shape: Shape, memory_shape: Shape | None = None) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> Config:
        return super().get_config() | {"cross_attention": self.cross_attention}
