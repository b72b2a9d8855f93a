"""Disentangled attention (DeBERTa).

Shapes: as in `scheme.py`.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.kernels.dense import EinsumDense
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.dot_product_attention import query_scale
from keras_transformer.layers.positions.scheme import Positions, Relate, distances, spread
from keras_transformer.layers.positions.sharing import Shareable, deserialize_shared
from keras_transformer.layers.relation import Relation
from keras_transformer.position_schemes import MAX_DISTANCES
from keras_transformer.typing import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class DisentangledPositions(Positions):
    """Adds products of contents and distances to the scores (He et al., 2021, "DeBERTa", §3.1).

    Three terms, each of them scaled by 1/√(3K): content to content; content to position,
    `qᵢ·Kʳ[δ]`; and position to content, `kⱼ·Qʳ[δ]`. `Kʳ` and `Qʳ` are projections of one table
    `(2k, D)` that all layers of a stack share, with δ = i - j + k clipped to 0 … 2k - 1. That is
    as in the authors' code, where the third term, too, looks up query minus key; equation 4 of the
    paper has key minus query there. `Qʳ` has a bias, `Kʳ` none. Unlike theirs, the keys of the
    contents have one, as everywhere in this package; 0 makes it the authors'.

    In a decoder it is an extension of ours: the paper's model is an encoder.

    Args:
        max_distance: k, from which on all distances count as one.
        table: The `table` of another one, to be shared.

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
        made = deserialize_shared(table) if isinstance(table, dict) else table
        self.table: Any = made or DistanceTable(dtype=self.dtype_policy)

    def of_layer(self) -> "DisentangledPositions":
        return DisentangledPositions(self.max_distance, self.table, dtype=self.dtype_policy)

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

    def lay_out(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> Relate:
        table = ops.cast(self.table.distances, self.compute_dtype)
        look_up = self._project(table) if loop else None

        def relate(num_queries, num_keys, start):
            lengths = num_queries, num_keys
            index = self.max_distance - distances(*lengths, start)
            index = ops.clip(index, 0, 2 * self.max_distance - 1)
            if loop:
                rows = [ops.take(x, index, axis=1) for x in look_up]
            else:  # of many distances, few occur
                rows = self._project(ops.take(table, index, axis=0))
            of_keys, of_queries = rows  # (H, R, K)

            def add_scores(scores, query, key):
                content_to_position = spread(_by_heads(query, of_keys, multiply), *lengths)
                if isinstance(num_queries, int) and num_queries == 1:
                    both = ops.cast(key, "float32") * ops.cast(of_queries, "float32")
                    position_to_content = ops.expand_dims(ops.sum(both, axis=-1), 2)
                else:
                    product = _by_heads(key, ops.flip(of_queries, axis=1), multiply)
                    turned = spread(product, *reversed(lengths))  # (B, H, S, T)
                    position_to_content = ops.transpose(turned, (0, 1, 3, 2))
                for term in (content_to_position, position_to_content):
                    scores = scores + ops.cast(term, "float32")
                return scores / math.sqrt(3)

            return Relation(add_scores=add_scores)

        return relate

    def get_config(self) -> Config:
        table = self.table.serialize_for(self) if self.table.users > 1 else None
        return super().get_config() | {"max_distance": self.max_distance, "table": table}

    def _project(self, rows):
        """Keys and queries `(H, R, K)` of rows `(R, D)` of the table; the latter times 1/√K."""
        keys, queries = (
            ops.transpose(dense(rows[None])[0], (1, 0, 2))
            for dense in (self.key_dense, self.query_dense)
        )
        return keys, queries * ops.cast(query_scale(queries.shape[-1]), queries.dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DistanceTable(Shareable):
    """Holds the vectors `(2k, D)` of distances."""

    def build(self, table_shape: Shape) -> None:
        self.distances = self.add_weight(
            shape=table_shape,
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
            name="distances",
        )
        self.built = True


def _by_heads(x, rows, multiply):
    """The products of `(B, H, N, K)` and, head by head, `(H, R, K)`: `(B, H, N, R)`."""
    batch, heads, length, width = ops.shape(x)
    by_heads = ops.reshape(ops.transpose(x, (1, 0, 2, 3)), (heads, batch * length, width))
    product = multiply(by_heads, rows, transpose_y=True)  # (H, B·N, R)
    product = ops.reshape(product, (heads, batch, length, ops.shape(rows)[1]))
    return ops.transpose(product, (1, 0, 2, 3))
