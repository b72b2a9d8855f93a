"""The decoder one position at a time, with what it needs of the positions before kept.

A full pass computes all positions at once; decoding knows the next one only. What a pass over the
whole prefix would compute again and again, keys and values, is kept in a state. With one position
at a time, products are small, and bringing weights to the processor is what takes the time: so a
step's kernels are joined and laid out once, before the loop that calls it.

The layers know nothing of this. A step takes their weights as they are, wires them by the decoder
layer's own `connect`, and calls the layer itself wherever it is another one than ours: a subclass,
or one that has been quantized.

Shapes: B batch, S source length, t positions decoded so far, D d_model, H heads, K width of a head.
"""

import functools
import numbers
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.kernels.backend import values_of
from keras_transformer.kernels.dense import (
    Dense,
    EinsumDense,
    matrix_and_bias,
    projection,
)
from keras_transformer.kernels.layer_normalization import LayerNormalization
from keras_transformer.layers.arguments import nan_unless
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.decoder_layer import Sublayers
from keras_transformer.layers.dot_product_attention import attend_heads, query_scale
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masks import key_mask
from keras_transformer.layers.relation import NO_RELATION
from keras_transformer.layers.stack import Stack
from keras_transformer.typing import Step, Tensor


class Operations(NamedTuple):
    """Attention's operations; `kernels/tensorflow/step_attention.py` has others."""

    multiply: Callable[..., Tensor] = products.multiply
    softmax: Callable[[Tensor], Tensor] = ops.softmax


def make_step(
    decoder: Stack, loop: str = "graph", operations: Operations | ModuleType | None = None
) -> Step:
    """Returns a function that computes the next position.

    Kernels are joined and laid out now, once, so the function belongs to the weights as they are
    now.

    Args:
        decoder: A built `Decoder`.
        loop: What runs the loop that it is for: `"graph"` (TensorFlow's executor) or `"xla"`.
        operations: Has functions `multiply` and `softmax` like those of `Operations`, if others
            suit that loop better.

    Returns:
        Function of

        - x: The embedded next position, shape `(B, D)`.
        - position: Its number, a Python int or a scalar integer tensor.
        - state: What `initial_state` or the step before returned.

        to a tensor of shape `(B, D)`, and the next state.
    """
    operations = operations or Operations()
    steps = [_make_layer_step(layer, loop, operations) for layer in decoder.layers]
    relate = _make_relate(decoder, operations)

    def step(x, position, state):
        add, past_mask = _grow, None
        num_keys = ops.shape(state["past"][0][0])[2]
        if "positions" in state:
            x = _check_room(x, position, ops.shape(state["positions"])[1])
            add = functools.partial(_put, position)
            past_mask = key_mask(ops.less_equal(state["positions"], position))
        else:
            num_keys = num_keys + 1
        past, memories = [], state.get("memory", [None] * len(steps))
        relations = relate(num_keys, position)
        layers = zip(steps, state["past"], memories, relations, strict=True)
        for layer_step, own, memory, relation in layers:
            masks = past_mask, state.get("memory_mask")
            x, own = layer_step(x, own, memory, add, relation, *masks)
            past.append(own)
        return decoder.finish(x), state | {"past": past}

    return step


def _make_relate(decoder, operations):
    """Function from the number of keys and the query's position to a `Relation` for each layer.

    What layers share is computed once.
    """
    schemes = [layer.self_attention.positions for layer in decoder.layers]
    shared = {id(scheme): scheme for scheme in schemes if scheme}
    laid_out = {
        key: scheme.lay_out(operations.multiply, loop=True) for key, scheme in shared.items()
    }

    def relate(num_keys, position):
        relations = {key: function(1, num_keys, position) for key, function in laid_out.items()}
        return [relations.get(id(scheme), NO_RELATION) for scheme in schemes]

    return relate


def make_projection(dense: Dense | EinsumDense, loop: str) -> Callable[[Tensor], Tensor] | None:
    """A layer's `x ↦ x W + b` with W laid out for a loop, without its activation.

    Args:
        dense: `Dense` or `EinsumDense`.
        loop: As `projection` has it.

    Returns:
        Function from `(B, D)` to `(B, D')`, the axes of heads joined; None where only the layer
        itself knows what it computes.
    """
    return projection(*matrix_and_bias(dense), loop) if _is_plain(dense) else None


def make_logits(
    embedding: keras.layers.Layer, dense: Dense | None, loop: str
) -> Callable[[Tensor], Tensor]:
    """The softmax's inputs of one position: a function from `(B, D)` to `(B, V)`.

    Args:
        embedding: `PositionalEmbedding` that they come from where there is no layer for them.
        dense: That layer, or None.
        loop: As `projection` has it.
    """
    if dense:
        return make_projection(dense, loop) or dense
    return projection(embedding.softmax_matrix(), loop=loop)


def _make_layer_step(layer, loop, operations):
    """The step of a `DecoderLayer`: its sublayers with their weights prepared."""
    own, cross = layer.self_attention, layer.cross_attention
    project_own = _make_projections(own, ("query", "key", "value"), loop)
    attend_own = _make_attend(own, loop, operations)
    if cross:
        project_cross = _make_projections(cross, ("query",), loop)
        attend_cross = _make_attend(cross, loop, operations)
    feed_forward = _make_feed_forward(layer.feed_forward, loop)
    norms = layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm
    norms = [norm and _make_norm(norm) for norm in norms]

    def step(x, past, memory, add, relation, past_mask, memory_mask):
        def attend_self(y):
            query, key, value = project_own(y)
            query, key = _rotate(relation, query), _rotate(relation, key)
            grown = tuple(map(add, past, (key, value)))
            return attend_own(query, *grown, past_mask, relation), grown

        def attend_memory(y):
            (query,) = project_cross(y)
            return attend_cross(query, *memory, memory_mask), None

        def transform(y):
            return feed_forward(y), None

        sublayers = Sublayers(attend_self, attend_memory if cross else None, transform, *norms)
        x, past, _ = layer.connect(x, sublayers)
        return x, past

    return step


def _rotate(relation, heads):
    """Heads `(B, H, 1, K)` turned as those of a full pass, `(B, 1, H, K)`: the same in memory."""
    if relation.rotate is NO_RELATION.rotate:
        return heads
    batch, num_heads, _, width = ops.shape(heads)
    turned = relation.rotate(ops.reshape(heads, (batch, 1, num_heads, width)))
    return ops.reshape(turned, (batch, num_heads, 1, width))


def _check_room(x, position, room):
    """Refuses a position beyond the room; where it is not known, NaN instead of `x`."""
    number = position if isinstance(position, numbers.Integral) else values_of(position)
    if number is None or not isinstance(room, int):
        # Written beyond the room, keys and values would take the place of the last.
        valid = ops.logical_and(position >= 0, position < room)
        return x + ops.cast(nan_unless(valid), x.dtype)
    if not 0 <= number < room:
        raise ValueError(
            f"There is no position {number} in a state with room for {room}, numbered from 0: "
            "make it with a larger length."
        )
    return x


def _grow(old, new):
    """Keys or values with one more position."""
    return ops.concatenate((old, new), axis=2)


def _put(position, old, new):
    """Keys or values with a position filled that is there already."""
    return ops.slice_update(old, (0, 0, position, 0), new)


def _make_projections(attention, names, loop):
    """Function from `(B, D)` to heads `(B, H, 1, K)`, one for each name, by one product."""
    scale = query_scale(attention.key_dim) if _attends_plainly(attention) else 1.0
    scales = [scale if name == "query" else 1.0 for name in names]
    denses = [getattr(attention, f"{name}_dense") for name in names]
    if not all(map(_is_plain, denses)):
        return lambda x: [
            ops.transpose(scale * dense(ops.expand_dims(x, 1)), (0, 2, 1, 3))
            for dense, scale in zip(denses, scales, strict=True)
        ]

    def joined(weights):
        if weights[0] is None:
            return None
        scaled = [weight * scale for weight, scale in zip(weights, scales, strict=True)]
        return ops.concatenate(scaled, axis=-1)

    matrices, biases = zip(*map(matrix_and_bias, denses), strict=True)
    project = projection(joined(matrices), joined(biases), loop)
    widths = [matrix.shape[1] for matrix in matrices]
    ends = [sum(widths[:i]) for i in range(1, len(names))]
    sections = len(names) if len(set(widths)) == 1 else ends  # the former: fewer operations

    def project_to_heads(x):
        parts = ops.split(project(x), sections, axis=-1) if len(names) > 1 else [project(x)]
        heads = attention.num_heads
        return [ops.reshape(x, (-1, heads, 1, x.shape[-1] // heads)) for x in parts]

    return project_to_heads


def _make_attend(attention, loop, operations):
    """Function from heads `(B, H, t, K)` and a mask to the layer's output `(B, D)`."""
    width = attention.num_heads * attention.value_dim
    project = make_projection(attention.output_dense, loop)
    multiply, softmax = operations.multiply, operations.softmax

    def attend(query, key, value, mask, relation=NO_RELATION):
        if _attends_plainly(attention):
            how = dict(multiply=multiply, softmax=softmax, relation=relation)
            x, _ = attend_heads(query, key, value, mask, **how)
        else:
            heads = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
            told = {} if relation is NO_RELATION else {"relation": relation}
            x, _ = attention.attend(*heads, mask=mask, **told)
        if project:
            return project(ops.reshape(x, (-1, width)))
        x = ops.reshape(x, (-1, 1, attention.num_heads, attention.value_dim))
        return ops.squeeze(attention.output_dense(x), 1)

    return attend


def _make_feed_forward(feed_forward, loop):
    """Function from `(B, D)` to `(B, D)`."""
    if type(feed_forward) is FeedForward:
        inner, outer = (
            make_projection(dense, loop) for dense in (feed_forward.inner, feed_forward.outer)
        )
        if inner and outer:
            return lambda x: outer(feed_forward.activation(inner(x)))
    return lambda x: ops.squeeze(feed_forward(ops.expand_dims(x, 1)), 1)


def _make_norm(norm):
    """Function from `(B, D)` to `(B, D)`."""
    return norm.as_function() if type(norm) is LayerNormalization else norm


def _is_plain(dense):
    """Tells whether a layer's kernel and bias say all that it computes."""
    return type(dense) in (Dense, EinsumDense) and dense.quantization_mode is None


def _attends_plainly(attention):
    return type(attention).attend is MultiHeadAttention.attend
