"""Arithmetic with the distances between queries and keys.

Shapes: T number of queries, S number of keys, both ints or scalar integer tensors;
R = T + S - 1 distances from a key to a query.
"""

from keras import ops

from keras_transformer.utils import Tensor


def count_distances(num_queries: int | Tensor, num_keys: int | Tensor) -> int | Tensor:
    """Returns R, the number of distances that occur; 0 without queries and keys."""
    return _at_least_0(num_queries + num_keys - 1)


def distances(num_queries: int | Tensor, num_keys: int | Tensor, start: int | Tensor = 0) -> Tensor:
    """Returns all distances that occur, of key minus query: -(start + T - 1) … S - 1 - start."""
    last = ops.cast(start, "int32") + (num_queries - 1)
    return ops.arange(count_distances(num_queries, num_keys), dtype="int32") - last


def distances_to_keys(x: Tensor, num_queries: int | Tensor, num_keys: int | Tensor) -> Tensor:
    """Rearranges values by distance `(..., T, R)` or `(..., 1, R)` to values by key `(..., T, S)`.

    For query t and key s, it is the entry s - t + T - 1 of row t. Each row is shifted by one more
    (Huang et al., 2018, "Music Transformer", §3.4.1), which needs no lookup.
    """
    if isinstance(num_queries, int) and num_queries == 1:
        return x
    *batch, rows, _ = ops.shape(x)
    width = count_distances(num_queries, num_keys)
    if isinstance(rows, int) and rows == 1:
        x = ops.broadcast_to(x, (*batch, num_queries, width))
    x = ops.reshape(_pad_last(x, 0, 1), (*batch, num_queries * (width + 1)))
    first = _at_least_0(num_queries - 1)
    x = ops.reshape(x[..., first : first + num_queries * width], (*batch, num_queries, width))
    return x[..., :num_keys]


def keys_to_distances(x: Tensor, num_queries: int | Tensor, num_keys: int | Tensor) -> Tensor:
    """Rearranges values by key `(..., T, S)` to values by distance `(..., T, R)`, 0 elsewhere."""
    if isinstance(num_queries, int) and num_queries == 1:
        return x
    *batch, _, _ = ops.shape(x)
    width, first = count_distances(num_queries, num_keys), _at_least_0(num_queries - 1)
    if _is_symbolic(width):  # JAX cannot flatten this product of sizes
        index = ops.arange(num_queries)[:, None] + ops.arange(width)
        index = ops.broadcast_to(index, (*batch, num_queries, width))
        return ops.take_along_axis(_pad_last(x, first, first), index, axis=-1)
    x = ops.reshape(_pad_last(x, 0, first), (*batch, num_queries * width))
    x = _pad_last(x, first, num_queries - first)
    return ops.reshape(x, (*batch, num_queries, width + 1))[..., :-1]


def _at_least_0(size):
    if _is_symbolic(size):  # at least 2
        return size
    return max(size, 0) if isinstance(size, int) else ops.maximum(size, 0)


def _is_symbolic(size):
    """Returns whether a size is unknown while JAX traces: neither an int nor a tensor."""
    return not isinstance(size, int) and not hasattr(size, "dtype")


def _pad_last(x, before, after):
    return ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(before, after)])
