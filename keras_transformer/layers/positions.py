"""Schemes of relative positions, which change attention's scores by the distance of query and key.

All of them are for self-attention; in cross-attention, query and key positions are unrelated.

Shapes: B batch, T number of queries, S number of keys, H heads, K width of a query and key head,
K' width of a value head, D width of the model, R = T + S - 1 distances from a key to a query.

Example:

>>> x = np.ones((2, 10, 512))
>>> for scheme in RelativePositions, BucketedPositions, RotaryPositions, DisentangledPositions:
...     assert MultiHeadAttention(8, 64, positions=scheme())(x, x).shape == x.shape
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels import backend
from keras_transformer.kernels.layers import EinsumDense
from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.presets.options import (
    MAX_DISTANCES,
    NUM_BUCKETS,
    check_positions,
    check_rotary,
    check_sizes,
)
from keras_transformer.utils import Config, Shape, Tensor


class PositionBias:
    """A scheme of relative positions, for certain queries and keys: what attention adds.

    `lengths` are T and S, and `start` is the position of the first query, each an int or a scalar
    integer tensor; the first key is at position 0. In a decoding `loop`, there is one query.
    """

    def __init__(
        self,
        scheme: "Positions",
        num_queries: int | Tensor,
        num_keys: int | Tensor,
        start: int | Tensor = 0,
        tables: Any = None,
        multiply: Callable[..., Tensor] = backend.multiply,
    ) -> None:
        self.scheme = scheme
        self.lengths = num_queries, num_keys
        self.start = start
        self.loop = tables is not None
        self.tables = tables if self.loop else scheme.make_tables(loop=False)
        self.multiply = multiply
        self.rows = scheme.look_up(self)


class Positions(keras.layers.Layer):
    """Base of the schemes of relative positions.

    Instead of adding an encoding to the embeddings ("Attention Is All You Need", §3.5), they change
    the scores `(B, H, T, S)` of attention. A scheme is a layer because it may have weights; it is
    not called. Your own scheme overrides `rotate`, `add_scores` or `add_values`, and `build_for` if
    it has weights. Pass it to `MultiHeadAttention(positions=…)`, or to `Encoder` or `Decoder`,
    whose layers share it. Each of these makes a copy by `get_config`, since Keras would save the
    weights of a common one with the first of them only.

    Example:

    >>> class LowerDistantScores(Positions):
    ...     def add_scores(self, scores, query, key, at):
    ...         queries = ops.arange(at.lengths[0]) + at.start
    ...         distance = ops.abs(queries[:, None] - ops.arange(at.lengths[1]))
    ...         return scores - ops.cast(distance, "float32")
    >>> attention, x = MultiHeadAttention(2, 8, positions=LowerDistantScores()), np.ones((1, 5, 16))
    >>> attention(x, x).shape
    (1, 5, 16)
    """

    built: bool

    def rotate(self, heads: Tensor, at: PositionBias) -> Tensor:
        """Changes projected queries or keys, `(B, T, H, K)`; `(B, H, 1, K)` if `at.loop`."""
        return heads

    def add_scores(self, scores: Tensor, query: Tensor, key: Tensor, at: PositionBias) -> Tensor:
        """Changes the scores, float32 `(B, H, T, S)`, before mask and softmax.

        They are the products of the query `(B, H, T, K)` times 1/√K and the key `(B, H, S, K)`.
        """
        return scores

    def add_values(self, output: Tensor, weights: Tensor, at: PositionBias) -> Tensor:
        """Changes the output `(B, H, T, K')`, given the weights `(B, H, T, S)` after dropout."""
        return output

    def make_tables(self, loop: bool) -> Any:
        """Returns what depends on the weights only; in a loop it is computed once, before it."""
        return ()

    def look_up(self, at: PositionBias) -> Any:
        """Returns `at.rows`: what layers with the same scheme share, given `at.tables`."""
        return None

    def for_layer(self) -> "Positions":
        """Returns the scheme of one layer of a stack: this one, or one with its own weights.

        A subclass of a scheme with its own weights overrides it if it takes other arguments.
        """
        return self

    def prepare(self, *sizes: Any, policy: keras.DTypePolicy) -> None:
        """Builds the scheme for an attention layer, unless another layer has built it already."""
        if not self.built:
            self.dtype_policy = policy
            self.build_for(*sizes)
            self.built = True

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        """Creates the weights for attention with H heads, K, K' and queries of width D."""

    def add_table(self, name: str, shape: Shape, initializer: Any) -> keras.Variable:
        """Adds a weight that Keras never casts automatically."""
        return self.add_weight(shape=shape, initializer=initializer, autocast=False, name=name)

    def get_config(self) -> Config:
        return super().get_config()  # without this method Keras would guess from the arguments


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePositions(Positions):
    """Adds a vector for each distance to keys and values (Shaw et al., 2018, §3.1 and §3.2).

    `e_ij = qᵢ·(kⱼ + a^K_ij)/√K` and `zᵢ = Σⱼ αᵢⱼ (vⱼ + a^V_ij)`, `a_ij = w[clip(j - i, -k, k)]`:
    equations 3 and 4. All heads share the two tables; each attention layer has its own.

    Args:
        max_distance: k; larger distances are clipped to it.
    """

    def __init__(self, max_distance: int = MAX_DISTANCES["relative"], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        (self.max_distance,) = check_sizes(max_distance=max_distance)

    def for_layer(self) -> "RelativePositions":
        options = {"dtype": self.dtype_policy, "trainable": self.trainable}
        return type(self)(self.max_distance, **options)

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        rows = 2 * self.max_distance + 1
        self.key_table = self.add_table("relative_keys", (rows, key_dim), "glorot_uniform")
        self.value_table = self.add_table("relative_values", (rows, value_dim), "glorot_uniform")

    def make_tables(self, loop: bool) -> list[Tensor]:
        return [ops.cast(x, self.compute_dtype) for x in (self.key_table, self.value_table)]

    def look_up(self, at: PositionBias) -> list[Tensor]:
        """Returns the vectors `(R, K)` and `(R, K')` of the distances."""
        index = ops.clip(distances(*at.lengths, at.start), -self.max_distance, self.max_distance)
        return [ops.take(table, index + self.max_distance, axis=0) for table in at.tables]

    def add_scores(self, scores: Tensor, query: Tensor, key: Tensor, at: PositionBias) -> Tensor:
        keys, _ = at.rows
        *batch, width = ops.shape(query)
        product = at.multiply(ops.reshape(query, (1, -1, width)), keys[None], transpose_y=True)
        product = ops.reshape(product, (*batch, count_distances(*at.lengths)))  # (B, H, T, R)
        return scores + ops.cast(distances_to_keys(product, *at.lengths), "float32")

    def add_values(self, output: Tensor, weights: Tensor, at: PositionBias) -> Tensor:
        _, values = at.rows
        rows = math.prod(ops.shape(output)[:-1])
        weights = keys_to_distances(weights, *at.lengths)
        weights = ops.reshape(weights, (1, rows, count_distances(*at.lengths)))
        return output + ops.reshape(at.multiply(weights, values[None]), ops.shape(output))

    def get_config(self) -> Config:
        return super().get_config() | {"max_distance": self.max_distance}


@keras.saving.register_keras_serializable(package="keras_transformer")
class BucketedPositions(Positions):
    """Adds a learned bias for each head and bucket of distances (Raffel et al., 2020, §2.1).

    This is the scheme of T5. Each small distance has its own bucket; larger distances share wider
    and wider buckets, and all from `max_distance` on share the last one. All layers of a stack
    share one table. T5 omits the factor 1/√K in the products of queries and keys; this layer keeps
    it.

    Args:
        num_buckets: Number of buckets; if `bidirectional`, half of them for each direction.
        max_distance: Distance from which on all share the last bucket.
        bidirectional: Whether keys after the query have their own buckets, as in an encoder. If
            not, they share the bucket of distance 0, and a causal mask must hide them.

    Raises:
        ValueError: If there are too few buckets, or too many for `max_distance`.
    """

    def __init__(
        self,
        num_buckets: int = NUM_BUCKETS,
        max_distance: int = MAX_DISTANCES["bucketed"],
        bidirectional: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = check_sizes(num_buckets=num_buckets, max_distance=max_distance)
        self.num_buckets, self.max_distance = sizes
        self.bidirectional = bidirectional
        self.buckets = buckets(self.num_buckets, self.max_distance, bidirectional)

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.biases = self.add_table("biases", (self.num_buckets, num_heads), initializer)

    def make_tables(self, loop: bool) -> Tensor:
        """Returns the bias of each distance, `(H, 2 max_distance + 1)`."""
        return ops.transpose(ops.take(ops.cast(self.biases, "float32"), self.buckets, axis=0))

    def look_up(self, at: PositionBias) -> Tensor:
        """Returns the bias of each pair, `(H, T, S)`."""
        index = ops.clip(distances(*at.lengths, at.start), -self.max_distance, self.max_distance)
        biases = ops.take(at.tables, index + self.max_distance, axis=1)  # (H, R)
        return distances_to_keys(ops.expand_dims(biases, 1), *at.lengths)

    def add_scores(self, scores: Tensor, query: Tensor, key: Tensor, at: PositionBias) -> Tensor:
        return scores + at.rows

    def get_config(self) -> Config:
        return super().get_config() | {
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
        }


def buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> np.ndarray:
    """Returns the buckets of the distances -max_distance … max_distance, key minus query, int32."""
    directions = 2 if bidirectional else 1
    per_direction, remainder = divmod(num_buckets, directions)
    exact = per_direction // 2  # number of distances with their own bucket
    if remainder or not 1 <= exact < max_distance:
        raise ValueError(
            "Each direction must have a whole number of buckets, at least 2 and below "
            f"2·max_distance: received num_buckets={num_buckets}, max_distance={max_distance}."
        )
    distance = np.arange(-max_distance, max_distance + 1)
    backwards = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    share = np.log(np.maximum(backwards, 1) / exact) / math.log(max_distance / exact)
    # 1e-9, so that rounding errors do not truncate a whole number to the one below.
    wide = exact + (share * (per_direction - exact) + 1e-9).astype("int32")
    bucket = np.where(backwards < exact, backwards, np.minimum(wide, per_direction - 1))
    return (bucket + (per_direction * (distance > 0) if bidirectional else 0)).astype("int32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPositions(Positions):
    """Rotates queries and keys by angles that grow with their positions (Su et al., 2021, §3.2.2).

    The entries 2i and 2i + 1 of a head at position p, as a point of the plane, are rotated by
    `p · 10000^(-2i/K)` radians, so that the product of query and key depends on their distance.
    Pairs are adjacent entries, as in the paper; some implementations pair an entry with the one
    half a head later, which differs in the order of the columns of W^Q and W^K only. Angles are
    float32 in every precision. The scheme has no weights and no maximum distance.

    Raises:
        ValueError: If the width of a head is odd.
    """

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        check_rotary(key_dim)
        # (x, y) to (-y, x), for each pair.
        quarter_turn = np.kron(np.eye(key_dim // 2), [[0, 1], [-1, 0]])
        self.quarter_turn = quarter_turn.astype("float32")

    def look_up(self, at: PositionBias) -> list[Tensor] | None:
        """Returns the angles, see `_compute_angles`, if queries and keys have the same ones."""
        return self._compute_angles(1, at.start) if at.loop else None

    def rotate(self, heads: Tensor, at: PositionBias) -> Tensor:
        shape, x = ops.shape(heads), ops.cast(heads, "float32")
        cosines, sines = at.rows or self._compute_angles(shape[1], at.start)
        # A matrix product, since swapping entries takes six times as long.
        turned = at.multiply(ops.reshape(x, (-1, shape[-1])), self.quarter_turn)
        x = x * cosines + ops.reshape(turned, shape) * sines
        return ops.cast(x, heads.dtype)

    def _compute_angles(self, length, start):
        """Returns cosines and sines `(T, 1, K)`, float32, each twice for the entries of a pair."""
        width = len(self.quarter_turn)
        encoding = sinusoidal_encoding(length, width, start)
        encoding = ops.reshape(encoding, (length, 1, width // 2, 2))
        return [ops.repeat(encoding[..., i], 2, axis=-1) for i in (1, 0)]


@keras.saving.register_keras_serializable(package="keras_transformer")
class DisentangledPositions(Positions):
    """Adds products of contents and distances to the scores (He et al., 2021, "DeBERTa", §3.1).

    Three terms, each of them scaled by 1/√(3K): content to content; content to position,
    `qᵢ·Kʳ[δ]`; and position to content, `kⱼ·Qʳ[δ]`. `Kʳ` and `Qʳ` are projections of one table
    `(2k, D)` that all layers of a stack share, with δ = i - j + k clipped to 0 … 2k - 1. This
    follows the authors' code, where the third term, too, looks up query minus key; equation 4 of
    the paper has key minus query there. `Qʳ` has a bias, `Kʳ` has none. Unlike in their code, the
    content keys have a bias. The paper's model is an encoder; a decoder is our extension.

    Args:
        max_distance: k; larger distances are clipped to it.
        table: The `table` of the other layers of a stack.
    """

    def __init__(
        self,
        max_distance: int = MAX_DISTANCES["disentangled"],
        table: "DistanceTable | None" = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        (self.max_distance,) = check_sizes(max_distance=max_distance)
        self.table = table or DistanceTable(dtype=self.dtype_policy)

    def for_layer(self) -> "DisentangledPositions":
        options = {"dtype": self.dtype_policy, "trainable": self.trainable}
        return type(self)(self.max_distance, self.table, **options)

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        if not self.table.built:
            self.table.dtype_policy = self.dtype_policy
            self.table.build((2 * self.max_distance, width))
        self.key_dense, self.query_dense = (
            EinsumDense(
                "btd,dhk->bthk",
                (None, num_heads, key_dim),
                bias_axes=bias_axes,
                dtype=self.dtype_policy,
                name=name,
            )
            for name, bias_axes in (("position_key", None), ("position_query", "hk"))
        )
        for dense in (self.key_dense, self.query_dense):
            dense.build((None, None, width))

    def make_tables(self, loop: bool) -> Any:
        """Returns the table `(2k, D)`; in a loop, its projections `(H, 2k, K)`."""
        table = ops.cast(self.table.distances, self.compute_dtype)
        return self._project(table) if loop else table

    def look_up(self, at: PositionBias) -> list[Tensor]:
        """Returns keys and queries `(H, R, K)` of the distances."""
        index = self.max_distance - distances(*at.lengths, at.start)
        index = ops.clip(index, 0, 2 * self.max_distance - 1)
        if at.loop:
            return [ops.take(x, index, axis=1) for x in at.tables]
        return self._project(ops.take(at.tables, index, axis=0))  # only a few of them occur

    def add_scores(self, scores: Tensor, query: Tensor, key: Tensor, at: PositionBias) -> Tensor:
        position_keys, position_queries = at.rows
        product = _multiply_heads(query, position_keys, at.multiply)
        content_to_position = distances_to_keys(product, *at.lengths)
        if at.loop:
            product = ops.cast(key, "float32") * ops.cast(position_queries, "float32")
            position_to_content = ops.expand_dims(ops.sum(product, axis=-1), 2)
        else:
            product = _multiply_heads(key, ops.flip(position_queries, axis=1), at.multiply)
            product = distances_to_keys(product, *reversed(at.lengths))  # (B, H, S, T)
            position_to_content = ops.transpose(product, (0, 1, 3, 2))
        for term in (content_to_position, position_to_content):
            scores = scores + ops.cast(term, "float32")
        return scores / math.sqrt(3)

    def get_config(self) -> Config:
        return super().get_config() | {"max_distance": self.max_distance}

    def _project(self, rows):
        """Projects rows `(R, D)` of the table to keys and, times 1/√K, queries `(H, R, K)`."""
        keys, queries = (
            ops.transpose(dense(rows[None])[0], (1, 0, 2))
            for dense in (self.key_dense, self.query_dense)
        )
        return keys, queries * ops.cast(1.0 / math.sqrt(queries.shape[-1]), queries.dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DistanceTable(keras.layers.Layer):
    """The vectors `(2k, D)` of the distances."""

    def build(self, table_shape: Shape) -> None:
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.distances = self.add_weight(table_shape, initializer, autocast=False, name="distances")
        self.built = True


def _multiply_heads(x, rows, multiply):
    """Multiplies `(B, H, N, K)` with `(H, R, K)`, head by head: `(B, H, N, R)`."""
    batch, heads, length, width = ops.shape(x)
    by_heads = ops.reshape(ops.transpose(x, (1, 0, 2, 3)), (heads, batch * length, width))
    product = multiply(by_heads, rows, transpose_y=True)  # (H, B·N, R)
    product = ops.reshape(product, (heads, batch, length, ops.shape(rows)[1]))
    return ops.transpose(product, (1, 0, 2, 3))


CLASSES: dict[str, type[Positions]] = {
    "relative": RelativePositions,
    "bucketed": BucketedPositions,
    "rotary": RotaryPositions,
    "disentangled": DisentangledPositions,
}


def make_positions(
    positions: str | Positions | Config | None,
    max_distance: int | None = None,
    bidirectional: bool | None = None,
    **kwargs: Any,
) -> Positions | None:
    """Returns the scheme of a name, a configuration or a copy; None if it leaves attention alone.

    `kwargs` are arguments of every layer, such as `dtype`.
    """
    if positions is None or isinstance(positions, Positions | dict):
        if max_distance is not None:
            raise ValueError(
                f"max_distance={max_distance} needs positions given by name, received {positions}."
            )
        if isinstance(positions, Positions):
            return type(positions).from_config(positions.get_config())
        return keras.saving.deserialize_keras_object(positions) if positions else None
    check_positions(positions, max_distance)
    if positions not in CLASSES:
        return None
    if max_distance is not None:
        kwargs["max_distance"] = max_distance
    if positions == "bucketed":
        kwargs["bidirectional"] = bidirectional is not False
    return CLASSES[positions](**kwargs)


# Arithmetic with the distances between queries and keys: T and S are ints or scalar tensors.


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
