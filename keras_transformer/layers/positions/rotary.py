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
        # (x, y) to (-y, x), for each pair.
        quarter_turn = np.kron(np.eye(key_dim // 2), [[0, 1], [-1, 0]])
        self.quarter_turn = quarter_turn.astype("float32")

    def lay_out(
        self, multiply: Callable[..., Tensor] = products.multiply, loop: bool = False
    ) -> Relate:
        def relate(num_queries, num_keys, start):
            of_step = self._turns(1, start) if loop else None  # the same for all layers

            def rotate(heads):
                shape, x = ops.shape(heads), ops.cast(heads, "float32")
                cosines, sines = of_step or self._turns(shape[1], start)
                # A product: to swap entries one by one takes six times as long.
                turned = multiply(ops.reshape(x, (-1, shape[-1])), self.quarter_turn)
                x = x * cosines + ops.reshape(turned, shape) * sines
                return ops.cast(x, heads.dtype)

            return Relation(rotate=rotate)

        return relate

    def _turns(self, length, start):
        """Cosines and sines `(T, 1, K)`, float32, those of a pair twice."""
        width = len(self.quarter_turn)
        turns = sinusoidal_encoding(length, width, start)
        turns = ops.reshape(turns, (length, 1, width // 2, 2))
        return [ops.repeat(turns[..., i], 2, axis=-1) for i in (1, 0)]
