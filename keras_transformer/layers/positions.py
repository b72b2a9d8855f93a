"""Schemes of relative positions, which change attention's scores by the distance of query and key.

All of them are for self-attention; in cross-attention, query and key positions are unrelated.

Shapes: see `position_scheme.py`.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.kernels.dense import EinsumDense
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.changes import Shareable, deserialize_shared
from keras_transformer.layers.dot_product_attention import PositionBias, query_scale
from keras_transformer.layers.position_scheme import (
    ComputeBias,
    Positions,
    count_distances,
    distances,
    distances_to_keys,
    keys_to_distances,
)
from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.presets.options import (
    MAX_DISTANCES,
    NUM_BUCKETS,
    RELATIVE,
    check_positions,
    check_rotary,
)
from keras_transformer.utils import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePositions(Positions):
    """Adds a vector for each distance to keys and values (Shaw et al., 2018, §3.1 and §3.2).

    `e_ij = qᵢ·(kⱼ + a^K_ij)/√K` and `zᵢ = Σⱼ αᵢⱼ (vⱼ + a^V_ij)`, `a_ij = w[clip(j - i, -k, k)]`:
    equations 3 and 4. All heads share the two tables; each attention layer has its own.

    Args:
        max_distance: k; larger distances are clipped to it.

    Raises:
        ValueError: If `max_distance` is not positive.

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=RelativePositions(max_distance=16))
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x).shape
    (2, 10, 512)
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

    def make_bias(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> ComputeBias:
        tables = [ops.cast(x, self.compute_dtype) for x in (self.key_table, self.value_table)]

        def compute_bias(num_queries, num_keys, start):
            lengths = num_queries, num_keys
            count = count_distances(*lengths)
            index = ops.clip(distances(*lengths, start), -self.max_distance, self.max_distance)
            index = index + self.max_distance
            keys, values = (ops.take(x, index, axis=0) for x in tables)  # (R, K)

            def add_scores(scores, query, key):
                *batch, width = ops.shape(query)
                product = multiply(ops.reshape(query, (1, -1, width)), keys[None], transpose_y=True)
                product = ops.reshape(product, (*batch, count))  # (B, H, T, R)
                return scores + ops.cast(distances_to_keys(product, *lengths), "float32")

            def add_values(output, weights):
                rows = math.prod(ops.shape(output)[:-1])
                weights = ops.reshape(keys_to_distances(weights, *lengths), (1, rows, count))
                return output + ops.reshape(multiply(weights, values[None]), ops.shape(output))

            return PositionBias(add_scores=add_scores, add_values=add_values)

        return compute_bias

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
        ValueError: If there are too few buckets, or `max_distance` is one of the distances with
            their own bucket.

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=BucketedPositions(bidirectional=False))
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x, use_causal_mask=True).shape
    (2, 10, 512)
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

    def make_bias(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> ComputeBias:
        biases = ops.take(ops.cast(self.biases, "float32"), self.buckets, axis=0)
        biases = ops.transpose(biases)  # (H, 2 max_distance + 1)

        def compute_bias(num_queries, num_keys, start):
            index = distances(num_queries, num_keys, start)
            index = ops.clip(index, -self.max_distance, self.max_distance) + self.max_distance
            bias = ops.expand_dims(ops.take(biases, index, axis=1), 1)  # (H, 1, R)
            bias = distances_to_keys(bias, num_queries, num_keys)  # (H, T, S)
            return PositionBias(add_scores=lambda scores, query, key: scores + bias)

        return compute_bias

    def get_config(self) -> Config:
        return super().get_config() | {
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
        }


def buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> np.ndarray:
    """Returns the bucket of each distance, key minus query.

    Args:
        num_buckets, max_distance, bidirectional: See `BucketedPositions`.

    Returns:
        int32 `(2 max_distance + 1,)`, for the distances -max_distance … max_distance.
    """
    directions = 2 if bidirectional else 1
    per_direction, remainder = divmod(num_buckets, directions)
    exact = per_direction // 2  # number of distances with their own bucket
    if exact < 1 or remainder:
        raise ValueError(
            f"num_buckets must be at least {2 * directions}"
            f"{' and even, half for each direction' if bidirectional else ''}, received "
            f"{num_buckets}."
        )
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be more than {exact}, the number of distances with their own "
            f"bucket, received {max_distance}: increase it or decrease num_buckets={num_buckets}."
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

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=RotaryPositions())
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x).shape
    (2, 10, 512)
    """

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        check_rotary(key_dim)
        # (x, y) to (-y, x), for each pair.
        quarter_turn = np.kron(np.eye(key_dim // 2), [[0, 1], [-1, 0]])
        self.quarter_turn = quarter_turn.astype("float32")

    def make_bias(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> ComputeBias:
        def compute_bias(num_queries, num_keys, start):
            # In a loop, all layers share those of the one position.
            angles = self._compute_angles(1, start) if loop else None

            def rotate(heads):
                shape, x = ops.shape(heads), ops.cast(heads, "float32")
                cosines, sines = angles or self._compute_angles(shape[1], start)
                # A matrix product, since swapping entries takes six times as long.
                turned = multiply(ops.reshape(x, (-1, shape[-1])), self.quarter_turn)
                x = x * cosines + ops.reshape(turned, shape) * sines
                return ops.cast(x, heads.dtype)

            return PositionBias(rotate=rotate)

        return compute_bias

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
    content keys have a bias, as in all attention layers here; with a bias of 0 both are equal.

    The paper's model is an encoder; using the scheme in a decoder is our extension.

    Args:
        max_distance: k; larger distances are clipped to it.
        table: The `table` of another scheme, to share it.

    Raises:
        ValueError: If `max_distance` is not positive.

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=DisentangledPositions(max_distance=64))
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x).shape
    (2, 10, 512)
    """

    def __init__(
        self,
        max_distance: int = MAX_DISTANCES["disentangled"],
        table: keras.layers.Layer | Config | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        (self.max_distance,) = check_sizes(max_distance=max_distance)
        table = deserialize_shared(table) if isinstance(table, dict) else table
        self.table: Any = table or DistanceTable(dtype=self.dtype_policy)

    def for_layer(self) -> "DisentangledPositions":
        options = {"dtype": self.dtype_policy, "trainable": self.trainable}
        return type(self)(self.max_distance, self.table, **options)

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        self.table.users += 1
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

    def make_bias(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> ComputeBias:
        table = ops.cast(self.table.distances, self.compute_dtype)
        projected_table = self._project(table) if loop else None

        def compute_bias(num_queries, num_keys, start):
            lengths = num_queries, num_keys
            index = self.max_distance - distances(*lengths, start)
            index = ops.clip(index, 0, 2 * self.max_distance - 1)
            if loop:
                rows = [ops.take(x, index, axis=1) for x in projected_table]
            else:  # only a few of the distances occur
                rows = self._project(ops.take(table, index, axis=0))
            position_keys, position_queries = rows  # (H, R, K)

            def add_scores(scores, query, key):
                product = _multiply_heads(query, position_keys, multiply)
                content_to_position = distances_to_keys(product, *lengths)
                if isinstance(num_queries, int) and num_queries == 1:
                    product = ops.cast(key, "float32") * ops.cast(position_queries, "float32")
                    position_to_content = ops.expand_dims(ops.sum(product, axis=-1), 2)
                else:
                    product = _multiply_heads(key, ops.flip(position_queries, axis=1), multiply)
                    product = distances_to_keys(product, *reversed(lengths))  # (B, H, S, T)
                    position_to_content = ops.transpose(product, (0, 1, 3, 2))
                for term in (content_to_position, position_to_content):
                    scores = scores + ops.cast(term, "float32")
                return scores / math.sqrt(3)

            return PositionBias(add_scores=add_scores)

        return compute_bias

    def get_config(self) -> Config:
        table = self.table.serialize_for(self) if self.table.users > 1 else None
        return super().get_config() | {"max_distance": self.max_distance, "table": table}

    def _project(self, rows):
        """Projects rows `(R, D)` of the table to keys and, times 1/√K, queries `(H, R, K)`."""
        keys, queries = (
            ops.transpose(dense(rows[None])[0], (1, 0, 2))
            for dense in (self.key_dense, self.query_dense)
        )
        return keys, queries * ops.cast(query_scale(queries.shape[-1]), queries.dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DistanceTable(Shareable):
    """The vectors `(2k, D)` of the distances."""

    def build(self, table_shape: Shape) -> None:
        self.distances = self.add_weight(
            shape=table_shape,
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
            name="distances",
        )
        self.built = True


def _multiply_heads(x, rows, multiply):
    """Multiplies `(B, H, N, K)` with `(H, R, K)`, head by head: `(B, H, N, R)`."""
    batch, heads, length, width = ops.shape(x)
    by_heads = ops.reshape(ops.transpose(x, (1, 0, 2, 3)), (heads, batch * length, width))
    product = multiply(by_heads, rows, transpose_y=True)  # (H, B·N, R)
    product = ops.reshape(product, (heads, batch, length, ops.shape(rows)[1]))
    return ops.transpose(product, (1, 0, 2, 3))


@keras.saving.register_keras_serializable(package="keras_transformer")
class AlibiPositions(Positions):
    """Lowers scores in proportion to the distance (Press et al., 2022, §3).

    It subtracts `m_h · |i - j|`, with slopes m_h = 2^(-8h/H) for h = 1 … H; if H is not a power of
    two, those of the next lower power and then every other one of the next higher, as in the
    authors' code. For causal attention only: an encoder could not distinguish a sentence from its
    reverse. The scheme has no weights and no maximum distance.

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=AlibiPositions())
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x, use_causal_mask=True).shape
    (2, 10, 512)
    """

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        self.slopes = np.array(slopes(num_heads), "float32").reshape(-1, 1, 1)

    def make_bias(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> ComputeBias:
        def compute_bias(num_queries, num_keys, start):
            distance = ops.cast(distances(num_queries, num_keys, start), "float32")
            bias = distances_to_keys(-self.slopes * ops.abs(distance), num_queries, num_keys)
            return PositionBias(add_scores=lambda scores, query, key: scores + bias)

        return compute_bias


def slopes(num_heads: int) -> list[float]:
    """Returns m_h of each head, steepest first if H is a power of two."""
    power = 2 ** math.floor(math.log2(num_heads))
    exact = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return exact if power == num_heads else [*exact, *slopes(2 * power)[0::2]][:num_heads]


CLASSES: dict[str, type[Positions]] = {
    "relative": RelativePositions,
    "bucketed": BucketedPositions,
    "rotary": RotaryPositions,
    "disentangled": DisentangledPositions,
    "alibi": AlibiPositions,
}


def make_positions(
    positions: str | Positions | Config | None,
    max_distance: int | None = None,
    bidirectional: bool | None = None,
    **kwargs: Any,
) -> Positions | None:
    """Creates a scheme from its name.

    Args:
        positions: One of `presets.POSITIONS`; or a `Positions`, which is returned, or its
            configuration.
        max_distance: Largest distance, for schemes that have one.
        bidirectional: Whether the attention is bidirectional rather than causal, if known.
        **kwargs: Arguments of every layer, such as `dtype`.

    Returns:
        A `Positions`; None if `positions` does not change attention.
    """
    scheme: Any = deserialize_shared(positions) if isinstance(positions, dict) else positions
    if scheme is None or isinstance(scheme, Positions):
        if max_distance is not None:
            raise ValueError(
                f"max_distance={max_distance} needs positions given by name, received {scheme!r}: "
                "pass a name, or pass max_distance to the class of the scheme."
            )
        return scheme
    check_positions(scheme, max_distance)
    if scheme not in RELATIVE:
        return None
    if scheme == "alibi" and bidirectional:
        raise ValueError(
            'positions="alibi" is for causal attention: with it, bidirectional attention could not '
            "distinguish a sentence from its reverse. Pass it to a Decoder, or pass an "
            "AlibiPositions to attention with a causal mask."
        )
    if scheme in MAX_DISTANCES and max_distance is not None:
        kwargs["max_distance"] = max_distance
    if scheme == "bucketed":
        kwargs["bidirectional"] = bidirectional is not False
    return CLASSES[scheme](**kwargs)
