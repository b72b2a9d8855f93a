"""Rotary position embedding (RoPE).

Shapes: as in `scheme.py`.
"""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.layers.positions.scheme import Positions, Relate
from keras_transformer.layers.relation import Relation
from keras_transformer.position_schemes import check_rotary
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPositions(Positions):
    """Turns queries and keys by angles that grow with their positions (Su et al., 2021, §3.2.2).

    The entries 2i and 2i + 1 of a head at position p, as a point of the plane, are turned by
    `p · 10000^(-2i/K)` radians, so that a product of query and key knows their distance. Pairs are
    adjacent entries, as in the paper; others pair an entry with the one half a head further on,
    which is the same but for the order of the columns of W^Q and W^K. Angles are float32 in every
    precision. There are no weights, and no longest distance.

    Raises:
        ValueError: If heads are of odd width.

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=RotaryPositions())
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x).shape
    (2, 10, 512)
    """

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        check_rotary(key_dim)

    def lay_out(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> Relate:
        def relate(num_queries, num_keys, start):
            def rotate(heads):
                turns = sinusoidal_encoding(ops.shape(heads)[1], heads.shape[-1], start)
                turns = ops.reshape(turns, (ops.shape(heads)[1], 1, heads.shape[-1] // 2, 2))
                sines, cosines = turns[..., :1], turns[..., 1:]  # (T, 1, K/2, 1)
                pairs = ops.reshape(heads, (*ops.shape(heads)[:-1], heads.shape[-1] // 2, 2))
                pairs = ops.cast(pairs, "float32")
                turned = pairs * cosines + ops.flip(pairs, axis=-1) * (sines * SIGNS)
                return ops.cast(ops.reshape(turned, ops.shape(heads)), heads.dtype)

            return Relation(rotate=rotate)

        return relate


SIGNS = np.array([-1.0, 1.0], "float32")  # (x, y) turns to (x cos - y sin, y cos + x sin)
