"""Scaled dot-product attention: the function that every attention layer calls.

Shapes: B batch, T number of queries, S number of keys, H heads, K width of a query and key head,
K' width of a value head.
"""

import math
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.layers.masks import as_boolean
from keras_transformer.layers.positions import PositionBias
from keras_transformer.utils import Tensor, counted

# Far below any score, yet finite: a row without keys must not become NaN.
MASKED_SCORE = -1e9


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
    position_bias: PositionBias | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes `softmax(QKᵀ/√K) V` ("Attention Is All You Need", equation 1) for every head.

    Scores, mask and softmax are float32 in every precision. A query that may attend to nothing has
    all-zero weights and so a zero output.

    Args:
        query: Tensor of shape `(B, T, H, K)`.
        key: Tensor of shape `(B, S, H, K)`.
        value: Tensor of shape `(B, S, H, K')`.
        mask: Boolean, True = may attend, of a shape that broadcasts to `(B, H, T, S)`.
        dropout: Rate of dropout on the attention weights.
        seed: Int or `keras.random.SeedGenerator` for the dropout.
        position_bias: A scheme of relative positions, which changes scores and output.

    Returns:
        The output, shape `(B, T, H, K')`, and the weights before dropout, shape `(B, H, T, S)`,
        both in the inputs' dtype.

    Raises:
        ValueError: If the mask is not boolean or does not broadcast to `(B, H, T, S)`, or if batch
            sizes or the lengths of keys and values differ, as far as they are known.

    Example:

    >>> query = np.array([[[[1.0, 0.0]]]])  # B = T = H = 1, K = 2
    >>> key = value = np.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])  # S = 2
    >>> output, weights = dot_product_attention(query, key, value)
    >>> weights  # the softmax of 1/√2 and 0
    array([[[[0.6698, 0.3302]]]])
    """
    query = query * ops.cast(query_scale(query.shape[-1]), query.dtype)
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    output, weights = attend_heads(
        query, key, value, mask, dropout, seed, position_bias=position_bias
    )
    return ops.transpose(output, (0, 2, 1, 3)), weights


def query_scale(width: int) -> float:
    """Returns `1/√K`, which multiplies the query: that keeps float16 in its range."""
    return 1.0 / math.sqrt(width)


def attend_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
    multiply: Callable[..., Tensor] = products.multiply,
    softmax: Callable[[Tensor], Tensor] = ops.softmax,
    position_bias: PositionBias | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes `dot_product_attention` with the heads in front: query `(B, H, T, K)` and so on.

    The query is already multiplied by `query_scale`.
    """
    _check_heads(query, key, value)
    scores = ops.cast(multiply(query, key, transpose_y=True), "float32")
    if position_bias:
        scores = position_bias.add_scores(scores, query, key)
    if mask is not None:
        _check_mask(mask, scores)
        mask = as_boolean(mask)
        scores = ops.where(mask, scores, MASKED_SCORE)
    # With a single key its weight is 1, and Keras warns of a softmax over one entry.
    weights = ops.ones_like(scores) if scores.shape[-1] == 1 else softmax(scores)
    if mask is not None:
        weights = ops.where(mask, weights, 0.0)  # a row without keys attends to nothing
    weights = ops.cast(weights, value.dtype)
    kept = keras.random.dropout(weights, dropout, seed=seed) if dropout else weights
    output = multiply(kept, value)
    return (position_bias.add_values(output, kept) if position_bias else output), weights


def _check_heads(query, key, value):
    """Checks that the shapes of heads `(B, H, T, K)` match, as far as they are known."""
    if None not in (key.shape[2], value.shape[2]) and key.shape[2] != value.shape[2]:
        raise ValueError(
            "There must be one value for each key, received "
            f"{counted(key.shape[2], 'key')} and {counted(value.shape[2], 'value')}."
        )
    sizes = {x.shape[0] for x in (query, key, value)} - {None}
    if len(sizes) > 1:
        raise ValueError(
            "query, key and value must have the same batch size, received "
            f"{query.shape[0]}, {key.shape[0]} and {value.shape[0]}."
        )


def _check_mask(mask, scores):
    """Checks that a mask broadcasts to scores `(B, H, T, S)`, as far as shapes are known."""
    expected = tuple(scores.shape)
    given = tuple(mask.shape)
    pairs = zip(reversed(given), reversed(expected), strict=False)
    fits = all(None in pair or pair[0] in (1, pair[1]) for pair in pairs)
    if len(given) > 4 or not fits:
        raise ValueError(
            f"The attention mask has shape {given}, which does not broadcast to {expected} = "
            "(batch, heads, queries, keys): pass (batch, queries, keys) to the layer, with size 1 "
            "for a shared axis."
        )
