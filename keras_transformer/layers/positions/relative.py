"""Relative position representations (Shaw et al., 2018).

Shapes: as in `scheme.py`.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.positions.scheme import (
    Positions,
    Relate,
    count_distances,
    distances,
    gather,
    spread,
)
from keras_transformer.layers.relation import Relation
from keras_transformer.position_schemes import MAX_DISTANCES
from keras_transformer.typing import Config, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePositions(Positions):
    """Adds a vector for each distance to keys and values (Shaw et al., 2018, §3.1 and §3.2).

    `e_ij = qᵢ·(kⱼ + a^K_ij)/√K` and `zᵢ = Σⱼ αᵢⱼ (vⱼ + a^V_ij)`, `a_ij = w[clip(j - i, -k, k)]`:
    equations 3 and 4. All heads share the two tables, each attention has its own.

    Args:
        max_distance: k, from which on all distances count as one.

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

    def of_layer(self) -> "RelativePositions":
        return RelativePositions(self.max_distance, dtype=self.dtype_policy)

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        rows = 2 * self.max_distance + 1
        self.key_table = self.add_table("relative_keys", (rows, key_dim), "glorot_uniform")
        self.value_table = self.add_table("relative_values", (rows, value_dim), "glorot_uniform")

    def lay_out(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> Relate:
        tables = [ops.cast(x, self.compute_dtype) for x in (self.key_table, self.value_table)]

        def relate(num_queries, num_keys, start):
            lengths = num_queries, num_keys
            count = count_distances(*lengths)
            index = ops.clip(distances(*lengths, start), -self.max_distance, self.max_distance)
            index = index + self.max_distance
            keys, values = (ops.take(x, index, axis=0) for x in tables)  # (R, K)

            def add_scores(scores, query, key):
                *batch, width = ops.shape(query)
                product = multiply(ops.reshape(query, (1, -1, width)), keys[None], transpose_y=True)
                product = ops.reshape(product, (*batch, count))  # (B, H, T, R)
                return scores + ops.cast(spread(product, *lengths), "float32")

            def add_values(output, weights):
                rows = math.prod(ops.shape(output)[:-1])
                weights = ops.reshape(gather(weights, *lengths), (1, rows, count))
                return output + ops.reshape(multiply(weights, values[None]), ops.shape(output))

            return Relation(add_scores=add_scores, add_values=add_values)

        return relate

    def get_config(self) -> Config:
        return super().get_config() | {"max_distance": self.max_distance}
