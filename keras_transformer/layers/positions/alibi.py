"""Attention with linear biases (ALiBi).

Shapes: as in `scheme.py`.
"""

import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels import products
from keras_transformer.layers.positions.scheme import Positions, Relate, distances, spread
from keras_transformer.layers.relation import Relation
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class AlibiPositions(Positions):
    """Lowers scores in proportion to the distance (Press et al., 2022, §3).

    By `m_h · |i - j|`, slopes m_h = 2^(-8h/H) for h = 1 … H; where H is no power of two, those of
    the next lower power and then every other one of the next higher, as its authors' code has it.
    For causal attention only: a whole encoder of it would read a sentence and its reverse alike.
    There are no weights, and no longest distance.

    Example:

    >>> attention = MultiHeadAttention(8, 64, positions=AlibiPositions())
    >>> x = np.ones((2, 10, 512))
    >>> attention(x, x, use_causal_mask=True).shape
    (2, 10, 512)
    """

    def build_for(self, num_heads: int, key_dim: int, value_dim: int, width: int | None) -> None:
        self.slopes = np.array(slopes(num_heads), "float32").reshape(-1, 1, 1)

    def lay_out(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> Relate:
        def relate(num_queries, num_keys, start):
            distance = ops.cast(distances(num_queries, num_keys, start), "float32")
            bias = spread(-self.slopes * ops.abs(distance), num_queries, num_keys)  # (H, T, S)
            return Relation(add_scores=lambda scores, query, key: scores + bias)

        return relate


def slopes(num_heads: int) -> list[float]:
    """m_h of each head, steepest first as long as H is a power of two."""
    power = 2 ** math.floor(math.log2(num_heads))
    found = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return found if power == num_heads else [*found, *slopes(2 * power)[0::2]][:num_heads]
