"""Decoding one position at a time, with keys and values of the previous positions cached.

Several positions, such as those of a prefix, may be computed at once: R rows `(B·P, D)`.

Keys and values, which a pass over the whole prefix would compute again and again, are cached in a
state. The products of one position are small, and reading the weights from memory takes most of the
time: so the kernels are concatenated and transposed once, before the loop.

`DecoderStep` mirrors a `Decoder`, `LayerStep` a `DecoderLayer` and `AttentionStep` a
`MultiHeadAttention`. They read the weights of the layers, and call any sublayer that computes
something else: a subclass, or a quantized layer.

Shapes: B batch, S source length, t positions decoded so far, P positions decoded at once, R = B·P,
D d_model, H heads, K width of a head.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.backend import (
    ANY_LOOP,
    LoopOperations,
    Projection,
    nan_unless,
    values_of,
)
from keras_transformer.kernels.layers import Dense, EinsumDense, LayerNormalization
from keras_transformer.layers.attention import MultiHeadAttention, attend_heads
from keras_transformer.layers.masks import key_mask
from keras_transformer.layers.positions import PositionBias
from keras_transformer.layers.stack import FeedForward, ResidualBlock, Stack
from keras_transformer.utils import State, Tensor


def initial_state(
    decoder: Stack,
    batch_size: int | Tensor | None,
    length: int | None,
    memory: Tensor | None,
    memory_mask: Tensor | None,
) -> State:
    """Returns the state at position 0, see `Decoder.initial_state`.

    It is a dict of `past`, for each layer empty keys and values `(B, H, 0, K)` that grow along axis
    2 with every step, or of size t if `length` is given; with `length` also `past_positions`, the
    numbers of the t positions, int32 `(B, t)`; with a memory, for each layer its keys and values
    `(B, H, S, K)` as `memory`, and with a mask, that as `memory_mask`, `(B, 1, 1, S)`.
    """
    state: dict[str, State] = {}
    if memory is not None:
        batch_size, state["memory"] = ops.shape(memory)[0], []
        for attention in filter(None, (layer.cross_attention for layer in decoder.layers)):
            heads = attention.key_dense(memory), attention.value_dense(memory)
            state["memory"].append(tuple(ops.transpose(x, (0, 2, 1, 3)) for x in heads))
    if memory_mask is not None:
        state["memory_mask"] = key_mask(memory_mask)
    state["past"] = []
    for attention in (layer.self_attention for layer in decoder.layers):
        widths = attention.key_dim, attention.value_dim
        shapes = [(batch_size, attention.num_heads, length or 0, width) for width in widths]
        empty = tuple(ops.zeros(shape, attention.compute_dtype) for shape in shapes)
        state["past"].append(empty)
    if length is not None:
        positions = ops.arange(length, dtype="int32")
        state["past_positions"] = ops.broadcast_to(positions, (batch_size, length))
    return state


class DecoderStep:
    """Computes one position of a `Decoder`, with the weights that it has now.

    It is called as `Decoder.step` is.
    """

    def __init__(self, decoder: Stack, operations: LoopOperations = ANY_LOOP) -> None:
        self.compute_dtype = decoder.compute_dtype
        self.final_norm = decoder.final_norm
        self.layers = [LayerStep(layer, operations) for layer in decoder.layers]
        self.schemes = [layer.self_attention.positions for layer in decoder.layers]
        self.multiply = operations.multiply
        # Layers may share a scheme of relative positions: its tables are computed once.
        self.tables = {id(x): (x, x.make_tables(loop=True)) for x in self.schemes if x}

    def __call__(self, x: Tensor, position: int | Tensor, state: State) -> tuple[Tensor, State]:
        shape, x = ops.shape(x), ops.cast(x, self.compute_dtype)
        past_mask, count = None, shape[1] if len(shape) == 3 else None
        num_keys = ops.shape(state["past"][0][0])[2]
        if "past_positions" in state:
            x = _check_position(x, position, num_keys)
            if count is not None:
                x = _check_position(x, position + count - 1, num_keys)
            past_mask = key_mask(ops.less_equal(state["past_positions"], position))
        else:
            num_keys = num_keys + (1 if count is None else count)
        if count is not None:
            x = ops.reshape(x, (-1, shape[2]))
            positions = ops.expand_dims(ops.arange(count) + position, 1)
            past_mask = ops.less_equal(ops.arange(num_keys), positions)

        def append(cached, new):
            if "past_positions" in state:
                return ops.slice_update(cached, (0, 0, position, 0), new)
            return ops.concatenate((cached, new), axis=2)

        lengths = 1 if count is None else count, num_keys
        biases = {
            key: PositionBias(
                *(scheme, *lengths, position, tables if count is None else None), self.multiply
            )
            for key, (scheme, tables) in self.tables.items()
        }
        past, memories = [], state.get("memory", [None] * len(self.layers))
        for layer, scheme, cached, memory in zip(
            self.layers, self.schemes, state["past"], memories, strict=True
        ):
            bias, memory_mask = biases.get(id(scheme)), state.get("memory_mask")
            x, cached = layer.step(x, cached, append, past_mask, bias, memory, memory_mask, count)
            past.append(cached)
        x = self.final_norm(x) if self.final_norm else x
        return x if count is None else ops.reshape(x, shape), state | {"past": past}


class LayerStep:
    """One position of a `DecoderLayer`, or several."""

    def __init__(self, layer: ResidualBlock, operations: LoopOperations) -> None:
        self.residual = layer.residual
        self.self_attention = AttentionStep(layer.self_attention, operations)
        self.self_attention_norm = _make_norm(layer.self_attention_norm)
        self.cross_attention = None
        if layer.cross_attention:
            self.cross_attention = AttentionStep(layer.cross_attention, operations, ("query",))
            self.cross_attention_norm = _make_norm(layer.cross_attention_norm)
        self.feed_forward = _make_feed_forward(layer.feed_forward, operations)
        self.feed_forward_norm = _make_norm(layer.feed_forward_norm)

    def step(
        self,
        x: Tensor,
        past: tuple[Tensor, Tensor],
        append: Callable[[Tensor, Tensor], Tensor],
        past_mask: Tensor | None,
        bias: PositionBias | None,
        memory: tuple[Tensor, Tensor] | None,
        memory_mask: Tensor | None,
        count: int | Tensor | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Computes one position, or P.

        Args:
            x: Tensor of shape `(R, D)`.
            past: Cached keys and values of the self-attention, `(B, H, t, K)`.
            append: Function from cached and new keys or values `(B, H, P, K)` to both.
            past_mask: Mask of keys, `(B, 1, 1, t)` or `(P, t + P)`, or None.
            bias: Position bias of the self-attention, or None.
            memory, memory_mask: Keys and values of the cross-attention, `(B, H, S, K)`, or None;
                and their mask, `(B, 1, 1, S)`, or None.
            count: P, or None for one position.

        Returns:
            Tensor of shape `(R, D)`, and keys and values with the new positions.
        """

        def attend_self(y):
            query, key, value = self.self_attention.project(y, count)
            if bias:
                query, key = (bias.scheme.rotate(heads, bias) for heads in (query, key))
            if count is not None:
                query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
            key, value = append(past[0], key), append(past[1], value)
            return self.self_attention.attend(query, key, value, past_mask, bias), (key, value)

        def attend_memory(y):
            (query,) = self.cross_attention.project(y, count)
            if count is not None:
                query = ops.transpose(query, (0, 2, 1, 3))
            return self.cross_attention.attend(query, *memory, memory_mask), None

        x, new_past = self.residual(x, self.self_attention_norm, attend_self)
        if self.cross_attention:
            x, _ = self.residual(x, self.cross_attention_norm, attend_memory)
        x, _ = self.residual(x, self.feed_forward_norm, lambda y: (self.feed_forward(y), None))
        return x, new_past


class AttentionStep:
    """Queries of a `MultiHeadAttention`, with those projections in `names` as one product."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        operations: LoopOperations,
        names: tuple[str, ...] = ("query", "key", "value"),
    ) -> None:
        self.attention = attention
        self.operations = operations
        self.overrides_attend = type(attention).attend is not MultiHeadAttention.attend
        scale = 1.0 if self.overrides_attend else 1.0 / math.sqrt(attention.key_dim)
        self.scales = [scale if name == "query" else 1.0 for name in names]
        self.denses = [getattr(attention, f"{name}_dense") for name in names]
        self.fused_projection: Projection | None = None
        if all(map(_is_plain, self.denses)):
            weights = [dense.matrix_and_bias() for dense in self.denses]
            self.widths = [matrix.shape[1] for matrix, _ in weights]
            scaled = list(zip(weights, self.scales, strict=True))
            matrix = ops.concatenate([matrix * scale for (matrix, _), scale in scaled], axis=-1)
            biases = [bias * scale for (_, bias), scale in scaled if bias is not None]
            bias = ops.concatenate(biases, axis=-1) if biases else None
            self.fused_projection = operations.projection(matrix, bias)
        self.output = make_projection(attention.output_dense, operations)

    def project(self, x: Tensor, count: int | Tensor | None) -> list[Tensor]:
        """Projects `(R, D)` to heads, one tensor for each name.

        They are `(B, H, 1, K)`; for a count of P positions `(B, P, H, K)`.
        """
        if self.fused_projection is None:
            x = ops.reshape(x, (-1, 1 if count is None else count, x.shape[-1]))
            found = [
                scale * dense(x) for dense, scale in zip(self.denses, self.scales, strict=True)
            ]
            return [ops.transpose(x, (0, 2, 1, 3)) for x in found] if count is None else found
        heads, widths = self.attention.num_heads, self.widths
        projected = [self.fused_projection(x)]
        if len(widths) > 1:
            ends = [sum(widths[:i]) for i in range(1, len(widths))]
            # A number of equal sections takes fewer operations than their ends.
            sections = len(widths) if len(set(widths)) == 1 else ends
            projected = ops.split(projected[0], sections, axis=-1)
        if count is None:
            return [ops.reshape(x, (-1, heads, 1, x.shape[-1] // heads)) for x in projected]
        return [ops.reshape(x, (-1, count, heads, x.shape[-1] // heads)) for x in projected]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        bias: PositionBias | None = None,
    ) -> Tensor:
        """Attends from heads `(B, H, P, K)` to `(B, H, t, K)`; returns the output `(R, D)`."""
        attention = self.attention
        if self.overrides_attend:
            query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
            position_kwargs: dict[str, Any] = {"position_bias": bias} if bias else {}
            x, _ = attention.attend(query, key, value, mask=mask, **position_kwargs)
        else:
            multiply, softmax = self.operations.multiply, self.operations.softmax
            x, _ = attend_heads(
                *(query, key, value, mask), multiply=multiply, softmax=softmax, position_bias=bias
            )
        if x.shape[-2] != 1 and not self.overrides_attend:  # already (B, P, H, K) otherwise
            x = ops.transpose(x, (0, 2, 1, 3))
        if self.output:
            return self.output(ops.reshape(x, (-1, attention.num_heads * attention.value_dim)))
        x = ops.reshape(x, (-1, 1, attention.num_heads, attention.value_dim))
        return ops.squeeze(attention.output_dense(x), 1)


def make_logits(
    embedding: keras.layers.Layer,
    dense: Dense | None,
    suppressed: Tensor | None,
    operations: LoopOperations,
) -> Projection:
    """Returns a function from `(B, D)` to the logits of one position, `(B, V)`.

    They are computed by `dense`, if there is one, or by the embedding; `suppressed`, float32
    `(V,)`, is added.
    """
    if dense and not _is_plain(dense):
        return dense if suppressed is None else lambda x: ops.cast(dense(x), "float32") + suppressed
    matrix, bias = dense.matrix_and_bias() if dense else embedding.columns_and_bias()
    if suppressed is not None:  # by way of the bias, for one pass over the logits less
        suppressed = ops.cast(suppressed, matrix.dtype)
        bias = suppressed if bias is None else bias + suppressed
    return operations.projection(matrix, bias, by_columns=not dense)


def make_projection(dense: Dense | EinsumDense, operations: LoopOperations) -> Projection | None:
    """Returns a layer's `x ↦ x W + b` without its activation; None if it computes anything else."""
    return operations.projection(*dense.matrix_and_bias()) if _is_plain(dense) else None


def _is_plain(dense):
    """Returns whether a layer's output depends on its kernel and bias only."""
    return type(dense) in (Dense, EinsumDense) and dense.quantization_mode is None


def _make_feed_forward(feed_forward, operations):
    """Returns a function from `(B, D)` to `(B, D)`."""
    if type(feed_forward) is FeedForward:
        inner = make_projection(feed_forward.inner, operations)
        outer = make_projection(feed_forward.outer, operations)
        if inner and outer:
            return lambda x: outer(feed_forward.activation(inner(x)))
    return lambda x: ops.squeeze(feed_forward(ops.expand_dims(x, 1)), 1)


def _make_norm(norm):
    """Returns a function from `(B, D)` to `(B, D)`."""
    if type(norm) is not LayerNormalization:
        return norm
    gamma, beta = (ops.cast(weight, "float32") for weight in (norm.gamma, norm.beta))
    return lambda x: norm.normalize(x, gamma, beta)


def _check_position(x, position, length):
    """Raises if a position is beyond the state's length; in graphs, returns NaN instead of `x`."""
    number = position if isinstance(position, numbers.Integral) else values_of(position)
    if number is None or not isinstance(length, int):
        # Keys and values beyond the length would overwrite the last ones.
        valid = ops.logical_and(position >= 0, position < length)
        return x + ops.cast(nan_unless(valid), x.dtype)
    if not 0 <= number < length:
        raise ValueError(
            f"position must be in 0 … {length - 1}, since the state has length={length}, received "
            f"{number}: create the state with a larger length."
        )
    return x
