"""The base class of all schemes of relative positions, and arithmetic with distances.

Shapes: B batch, T number of queries, S number of keys, H heads, K width of a query and key head,
K' width of a value head, D width of the model, R = T + S - 1 distances from a key to a query.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.layers.changes import Shareable
from keras_transformer.layers.dot_product_attention import PositionBias
from keras_transformer.utils import Shape, Tensor, counted

# From the numbers of queries and keys and the position of the first query to a PositionBias.
ComputeBias = Callable[[int | Tensor, int | Tensor, int | Tensor], PositionBias]


class Positions(Shareable):
    """Base of the schemes of relative positions.

    Instead of adding an encoding to the embeddings ("Attention Is All You Need", §3.5), they change
    the scores `(B, H, T, S)` of attention. A scheme is a layer because it may have weights; it is
    not called. Your own scheme overrides `make_bias`, and `build_for` if it has weights. Pass it
    to `MultiHeadAttention(positions=…)`, or to `Encoder` or `Decoder`, whose layers share it.

    Example:

    >>> class NoPositions(Positions):
    ...     def make_bias(self, multiply=None, loop=False):
    ...         return lambda num_queries, num_keys, start: PositionBias()
    >>> attention, x = MultiHeadAttention(2, 8, positions=NoPositions()), np.ones((1, 5, 16))
    >>> attention(x, x).shape
    (1, 5, 16)
    """

    built_for: tuple[int | None, ...] | None = None

    def for_layer(self) -> "Positions":
        """Returns the scheme of one layer of a stack: this one, or one with its own weights.

        Called once for each layer before any is built. A subclass of a scheme with its own weights
        overrides it if it takes other arguments.
        """
        return self

    def make_bias(
        self,
        multiply: Callable[..., Tensor] = products.multiply,
        loop: bool = False,
    ) -> ComputeBias:
        """Returns a function that computes the bias with the current weights.

        Args:
            multiply: The product of batches of matrices, see `kernels.products.multiply`.
            loop: Whether the function is called in many steps of one query each: everything that
                does not depend on the position is computed now.

        Returns:
            Function from the numbers of queries and keys, T and S, and the position of the first
            query, each an int or a scalar integer tensor, to a `PositionBias`. The first key is at
            position 0.
        """
        return lambda num_queries, num_keys, start: PositionBias()

    def prepare(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        width: int | None,
        policy: keras.DTypePolicy,
    ) -> None:
        """Builds the scheme for an attention layer, unless another layer has built it already.

        Args:
            num_heads, key_dim, value_dim: H, K and K' of the attention layer.
            width: D of its queries.
            policy: Its dtype policy, which the scheme adopts.

        Raises:
            ValueError: If the sizes are invalid for the scheme, or differ from those of the layer
                that it was built for.
        """
        self.users += 1
        sizes = num_heads, key_dim, value_dim, width
        if self.built_for is None:
            self.dtype_policy = policy
            self.build_for(*sizes)
            self.built_for = sizes
            self.built = True
        elif self.built_for != sizes:
            raise ValueError(
                f"{self.name!r} was built for attention with {_describe_sizes(self.built_for)}, "
                f"received {_describe_sizes(sizes)}: create one {type(self).__name__} for each."
            )

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        """Creates the weights; for the arguments, see `prepare`."""

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: only an attention layer knows the sizes, and calls `prepare`."""

    def add_table(self, name: str, shape: Shape, initializer: Any) -> keras.Variable:
        """Adds a weight that Keras never casts automatically."""
        return self.add_weight(shape=shape, initializer=initializer, autocast=False, name=name)

    def load_own_variables(self, store: Any) -> None:
        expected = len(self._trainable_variables)
        if len(store.keys()) != expected:
            raise ValueError(
                f"The file has {counted(len(store.keys()), 'weight')} for {self.name!r} "
                f"({type(self).__name__}), expected {expected}: it was saved by a model with "
                "different positions."
            )
        super().load_own_variables(store)


def count_distances(num_queries: int | Tensor, num_keys: int | Tensor) -> int | Tensor:
    """Returns R, the number of distances that occur; 0 without queries and keys."""
    return _at_least_0(num_queries + num_keys - 1)


def distances(num_queries: int | Tensor, num_keys: int | Tensor, start: int | Tensor = 0) -> Tensor:
    """Returns all distances that occur, key minus query, ascending.

    Args:
        num_queries: T, an int or a scalar integer tensor.
        num_keys: S, likewise.
        start: Position of the first query, likewise; the first key is at 0.

    Returns:
        int32 `(R,)`: -(start + T - 1) … S - 1 - start.
    """
    last = ops.cast(start, "int32") + (num_queries - 1)
    return ops.arange(count_distances(num_queries, num_keys), dtype="int32") - last


def distances_to_keys(x: Tensor, num_queries: int | Tensor, num_keys: int | Tensor) -> Tensor:
    """Rearranges values by distance to values by key, by shifting each row by one more.

    Huang et al. (2018), "Music Transformer", §3.4.1, for any T and S: it needs no lookup, and its
    gradient is `keys_to_distances`.

    Args:
        x: Tensor `(..., T, R)`, in the order of `distances`; or `(..., 1, R)`, the same for all
            queries.
        num_queries, num_keys: T and S.

    Returns:
        Tensor `(..., T, S)`: for query t and key s, the entry s - t + T - 1 of row t.
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
    """Rearranges values by key to values by distance, with 0 for distances missing in a row.

    Args:
        x: Tensor `(..., T, S)`.
        num_queries, num_keys: T and S.

    Returns:
        Tensor `(..., T, R)`; `distances_to_keys` is the inverse.
    """
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


def _describe_sizes(sizes):
    num_heads, key_dim, value_dim, width = sizes
    return (
        f"{num_heads} heads, key_dim={key_dim}, value_dim={value_dim} and inputs of width {width}"
    )
