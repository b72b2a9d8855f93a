"""What decoding one position at a time keeps of the positions before, and of the memory.

Shapes: B batch, S source length, t positions that there is room for, D d_model, H heads, K width of
a head.
"""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.masks import key_mask
from keras_transformer.layers.stack import Stack
from keras_transformer.typing import State, Tensor


def initial_state(
    decoder: Stack,
    batch_size: int | Tensor | None,
    length: int | None = None,
    memory: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> State:
    """Prepares decoding position by position: projects the memory once, where there is one.

    Args:
        decoder: A built `Decoder`.
        batch_size: B; that of the memory, where there is one.
        length: t, number of positions to make room for, so that no shape changes from step to
            step; XLA compiles nothing else.
        memory: The encoder's output, shape `(B, S, D)`.
        memory_mask: Boolean `(B, S)`.

    Returns:
        Dict of `past`, per layer empty keys and values `(B, H, 0, K)` that grow along axis 2 with
        every step, or of size t where `length` is given; with `length` also `positions`, the
        numbers of the t positions, int32 `(B, t)`; with a memory, per layer its keys and values
        `(B, H, S, K)` as `memory`; and with its mask that as `memory_mask`, `(B, 1, 1, S)`.

    Raises:
        ValueError: If a layer is a subclass with a `call` of its own, which a step would not
            follow.
    """
    for layer in decoder.layers:
        refuse_other_call(layer, DecoderLayer)
        for attention in filter(None, (layer.self_attention, layer.cross_attention)):
            refuse_other_call(attention, MultiHeadAttention)
    state: dict[str, State] = {}
    if memory is not None:
        batch_size = ops.shape(memory)[0]
        state["memory"] = [_project_memory(x.cross_attention, memory) for x in decoder.layers]
    if memory_mask is not None:
        state["memory_mask"] = key_mask(memory_mask)

    def empty(attention):
        widths = attention.key_dim, attention.value_dim
        shapes = [(batch_size, attention.num_heads, length or 0, width) for width in widths]
        return tuple(ops.zeros(shape, attention.compute_dtype) for shape in shapes)

    state["past"] = [empty(layer.self_attention) for layer in decoder.layers]
    if length is not None:
        positions = ops.arange(length, dtype="int32")
        state["positions"] = ops.broadcast_to(positions, (batch_size, length))
    return state


def _project_memory(attention, memory):
    """Projects `(B, S, D)` to key and value heads `(B, H, S, K)`."""
    heads = attention.key_dense(memory), attention.value_dense(memory)
    return tuple(ops.transpose(x, (0, 2, 1, 3)) for x in heads)


def refuse_other_call(layer: keras.layers.Layer, ours: type[keras.layers.Layer]) -> None:
    """Refuses a subclass whose full pass is another one than that of the step.

    Args:
        layer: What decoding would go through.
        ours: The class that it should be of, or inherit its `call` from.

    Raises:
        ValueError: If it does not.
    """
    if not isinstance(layer, ours) or type(layer).call is not ours.call:
        raise ValueError(
            f"{type(layer).__name__} ({layer.name!r}) has a call of its own, which decoding "
            "step by step would not follow: override "
            f"{'attend' if ours is MultiHeadAttention else 'make_attention'} of {ours.__name__}"
            " instead, or decode with the whole prefix."
        )
