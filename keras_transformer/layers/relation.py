"""What attention is told of where its queries and keys are.

Shapes: B batch, T number of queries, S number of keys, H heads, K width of a query and key head,
K' width of a value head.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras_transformer.typing import Tensor


def _same(x, *others):
    return x


class Relation(NamedTuple):
    """What positions do to one attention of T queries and S keys; by default, nothing.

    Three functions:

    - `rotate(heads)`: queries or keys as they are projected, `(B, T, H, K)`, to as much. A key is
      rotated once; decoding keeps it so.
    - `add_scores(scores, query, key)`: float32 `(B, H, T, S)` before mask and softmax, the query
      `(B, H, T, K)` multiplied by 1/√K and the key `(B, H, S, K)`, to what the scores become.
    - `add_values(output, weights)`: the heads `(B, H, T, K')` and the weights `(B, H, T, S)`, in
      training after dropout, to what the heads become.
    """

    rotate: Callable[[Tensor], Tensor] = _same
    add_scores: Callable[[Tensor, Tensor, Tensor], Tensor] = _same
    add_values: Callable[[Tensor, Tensor], Tensor] = _same


NO_RELATION = Relation()
