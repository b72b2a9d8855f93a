"""Attention masks.

Everywhere in this package a mask is boolean and **True means "may attend"**. This is the only
place where masks are made.

Shapes: B batch, S number of keys, T number of queries.

Example:

>>> mask = padding_mask(np.array([[5, 6, 0]]))
>>> mask
array([[True, True, False]])
>>> causal_mask(3)
array([[True, False, False], [True, True, False], [True, True, True]])
>>> combine(key_mask(mask), causal_mask(3)).shape
(1, 1, 3, 3)
"""

import functools

import keras
from keras import ops

from keras_transformer.kernels.backend import values_of
from keras_transformer.special_ids import PAD
from keras_transformer.utils import Tensor


def padding_mask(ids: Tensor) -> Tensor:
    """Marks the positions that hold a token.

    Args:
        ids: Integer tensor of shape `(B, S)`.

    Returns:
        Boolean tensor of shape `(B, S)`: False where `ids` is `PAD`.
    """
    return ops.not_equal(ids, PAD)


def causal_mask(num_queries: int | Tensor, num_keys: int | Tensor | None = None) -> Tensor:
    """Hides the future: query t may attend to keys 0 … t ("Attention Is All You Need", §3.2.3).

    Args:
        num_queries: T, an int or a scalar integer tensor.
        num_keys: S, likewise; T when left out.

    Returns:
        Boolean tensor of shape `(T, S)`, lower-triangular.
    """
    num_keys = num_queries if num_keys is None else num_keys
    queries = ops.arange(num_queries, dtype="int32")
    keys = ops.arange(num_keys, dtype="int32")
    return ops.greater_equal(ops.expand_dims(queries, 1), ops.expand_dims(keys, 0))


def combine(*masks: Tensor | None) -> Tensor | None:
    """Combines masks: True where all of them are True.

    Args:
        *masks: Masks of any shapes that broadcast together, see `as_boolean`; None allows
            everything.

    Returns:
        Boolean tensor of the broadcast shape, or None if no mask was given.

    Raises:
        ValueError: If a mask holds numbers that `as_boolean` does not accept.
    """
    given = [as_boolean(mask) for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, given) if given else None


def as_boolean(mask: Tensor) -> Tensor:
    """Reads a mask as Keras does: integers count as True where they are not zero.

    Floats must be known to be 0 or 1: others may be additive masks, which mean the opposite.
    """
    mask = mask if isinstance(mask, keras.KerasTensor) else ops.convert_to_tensor(mask)
    if keras.backend.is_float_dtype(mask.dtype):
        values = values_of(mask)
        if values is None or not ((values == 0) | (values == 1)).all():
            raise ValueError(
                "A mask must be boolean, True = may attend, received "
                + ("floats" if values is None else f"floats such as {values.min():g}")
                + ': pass ops.cast(mask, "bool"), or mask >= 0 for an additive mask.'
            )
    return ops.cast(mask, "bool")


def join_masks(
    query_mask: Tensor | None,
    key_masks: tuple[Tensor | None, ...],
    attention_mask: Tensor | None,
    causal: tuple[int | Tensor, int | Tensor] | None = None,
) -> Tensor | None:
    """Combines the masks of attention to one that broadcasts to `(B, H, T, S)`, or None.

    Args:
        query_mask: Boolean `(B, T)`, or None like all of them.
        key_masks: Those of the values and of the keys, boolean `(B, S)`.
        attention_mask: Boolean `(B, T, S)`, or anything that broadcasts to `(B, H, T, S)`.
        causal: (T, S) to hide the future.
    """
    if query_mask is not None:
        query_mask = ops.swapaxes(key_mask(query_mask), 2, 3)  # (B, 1, T, 1)
    if attention_mask is not None and len(attention_mask.shape) == 3:
        attention_mask = ops.expand_dims(attention_mask, 1)  # (B, 1, T, S)
    of_keys = map(key_mask, key_masks)
    return combine(query_mask, *of_keys, causal_mask(*causal) if causal else None, attention_mask)


def key_mask(mask: Tensor | None) -> Tensor | None:
    """Adds axes for heads and queries to a mask of the keys.

    Args:
        mask: Boolean tensor of shape `(B, S)`, or None.

    Returns:
        Tensor of shape `(B, 1, 1, S)`, which broadcasts to attention's `(B, H, T, S)`, or None.

    Raises:
        ValueError: If the mask does not have two axes: one would become the heads.
    """
    if mask is None:
        return None
    if len(mask.shape) != 2:
        raise ValueError(f"The mask must have shape (batch, length), received {tuple(mask.shape)}.")
    return ops.expand_dims(ops.expand_dims(mask, 1), 1)
