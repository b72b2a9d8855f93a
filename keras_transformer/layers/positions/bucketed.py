"""A bias for each bucket of distances (T5).

Shapes: as in `scheme.py`.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.positions.scheme import Positions, Relate, distances, spread
from keras_transformer.layers.relation import Relation
from keras_transformer.position_schemes import MAX_DISTANCES, NUM_BUCKETS
from keras_transformer.typing import Config, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class BucketedPositions(Positions):
    """Adds to scores a number for each bucket of distances and head (Raffel et al., 2020, §2.1).

    T5's. Near distances have a bucket each, farther ones share ever wider buckets, all from
    `max_distance` on the last one. All layers of a stack share one table. Unlike in T5, which has
    no 1/√K, the products of queries and keys keep that factor, as everywhere in this package.

    Args:
        num_buckets: How many; half of them each way where `bidirectional`.
        max_distance: From which on all distances count as one.
        bidirectional: Whether keys after the query have buckets of their own, as in an encoder.
            Else they share that of the query's own position, and a causal mask is to hide them.

    Raises:
        ValueError: If there are too few buckets, or `max_distance` lies within those of one
            distance each.

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

    def lay_out(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> Relate:
        biases = ops.take(ops.cast(self.biases, "float32"), self.buckets, axis=0)
        biases = ops.transpose(biases)  # (H, 2 max_distance + 1)

        def relate(num_queries, num_keys, start):
            index = distances(num_queries, num_keys, start)
            index = ops.clip(index, -self.max_distance, self.max_distance) + self.max_distance
            bias = ops.expand_dims(ops.take(biases, index, axis=1), 1)  # (H, 1, R)
            bias = spread(bias, num_queries, num_keys)  # (H, T, S)
            return Relation(add_scores=lambda scores, query, key: scores + bias)

        return relate

    def get_config(self) -> Config:
        return super().get_config() | {
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
        }


def buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> np.ndarray:
    """The bucket of each distance, key minus query.

    Args:
        num_buckets, max_distance, bidirectional: As `BucketedPositions` has them.

    Returns:
        int32 `(2 max_distance + 1,)`, of the distances -max_distance … max_distance.

    Raises:
        ValueError: As `BucketedPositions` does.
    """
    ways = 2 if bidirectional else 1
    each_way, left_over = divmod(num_buckets, ways)
    exact = each_way // 2  # so many distances have a bucket to themselves
    if exact < 1 or left_over:
        raise ValueError(
            f"num_buckets must be at least {2 * ways}"
            f"{' and even, for half lie each way' if bidirectional else ''}, received "
            f"{num_buckets}."
        )
    if max_distance <= exact:
        raise ValueError(
            f"max_distance must be more than {exact}, for of {num_buckets} buckets so many hold "
            f"one distance each, received {max_distance}: raise it or take fewer buckets."
        )
    distance = np.arange(-max_distance, max_distance + 1)
    backwards = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    share = np.log(np.maximum(backwards, 1) / exact) / math.log(max_distance / exact)
    # The sum keeps a share that is a fraction short of a whole number from being cut to the next.
    wide = exact + (share * (each_way - exact) + 1e-9).astype("int32")
    found = np.where(backwards < exact, backwards, np.minimum(wide, each_way - 1))
    return (found + (each_way * (distance > 0) if bidirectional else 0)).astype("int32")
