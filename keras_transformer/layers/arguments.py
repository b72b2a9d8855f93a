"""Checks of the arguments that layers are created and called with."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.kernels.backend import values_of
from keras_transformer.utils import Inputs, Tensor


def check_sizes(**sizes: Any) -> list[int]:
    """Reads sizes, which may be NumPy integers."""
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"{name} must be a positive integer, received {size!r}.")
    return [int(size) for size in sizes.values()]


IDS_SCOPE = "checked_ids"  # name scope of lookups, which fail if a graph runs with invalid ids


def as_ids(ids: Any) -> Tensor:
    """Converts ids `(B, T)` to a tensor."""
    if hasattr(ids, "to_tensor") and hasattr(ids, "row_lengths"):
        raise ValueError(
            "Ids must be padded to one length, received a RaggedTensor: pass ids.to_tensor(), "
            "which pads with PAD."
        )
    return ops.convert_to_tensor(ids)


def check_ids(ids: Tensor, vocabulary_size: int) -> None:
    """Checks the shape of ids `(B, T)`, and their values where they are known."""
    if len(ids.shape) != 2:
        raise ValueError(
            f"Ids must have shape (batch, length), received {tuple(ids.shape)}: put a single "
            "sentence into a batch of one."
        )
    values = values_of(ids)
    if values is None or not values.size:
        return
    # Keras' inputs are floats by default: whole numbers may arrive as such.
    if not np.issubdtype(values.dtype, np.integer) and (values != np.floor(values)).any():
        wrong = values[values != np.floor(values)][0]
        raise ValueError(f"Ids must be integers, received {wrong}: tokenize the text first.")
    if values.min() < 0 or values.max() >= vocabulary_size:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(wrong_id(f"{wrong:.0f}", vocabulary_size))


def wrong_id(received: str, vocabulary_size: int) -> str:
    """Returns the error about an id outside the vocabulary."""
    return (
        f"Ids must lie in 0 … {vocabulary_size - 1} (vocabulary_size={vocabulary_size}), received "
        f"{received}: tokenize with the vocabulary that the model was built for."
    )


def check_id_arrays(arrays: Any, vocabulary_sizes: Sequence[int]) -> None:
    """Applies `check_ids` to arrays before a compiled step, which could not raise a clear error."""
    if isinstance(arrays, (tuple, list)) and len(arrays) == len(vocabulary_sizes):
        for ids, vocabulary_size in zip(arrays, vocabulary_sizes, strict=True):
            if isinstance(ids, np.ndarray) and ids.ndim == 2:
                check_ids(ids, vocabulary_size)


def nan_unless(valid: Tensor) -> Tensor:
    """Returns 0 where `valid` is True, else NaN, for graphs to add: they cannot raise everywhere.

    TensorFlow's `enable_check_numerics` rejects a constant NaN.
    """
    return ops.sqrt(ops.cast(valid, "float32") - 1.0)


def check_pair(inputs: Any, return_attention_scores: Any = False) -> Inputs:
    """Checks that the inputs are a pair `(source, target)`, and returns them.

    A target passed as second argument takes the place of `return_attention_scores`.
    """
    is_pair = isinstance(inputs, (tuple, list)) and len(inputs) == 2
    if not is_pair or not isinstance(return_attention_scores, (bool, int, np.bool_)):
        received = type(inputs).__name__
        received += f" of {len(inputs)}" if isinstance(inputs, (tuple, list)) else ""
        raise ValueError(
            f"The inputs must be a pair (source, target) of ids, received {received}: call "
            "model((source, target)), and model.fit((source, target_in), target_out)."
        )
    return inputs


def check_rows(**tensors: Tensor) -> None:
    """Checks that tensors have the same number of rows, as far as it is known."""
    rows = {name: x.shape[0] for name, x in tensors.items() if getattr(x, "shape", ())}
    rows = {name: number for name, number in rows.items() if number is not None}
    if len(set(rows.values())) > 1:
        raise ValueError(
            f"{', '.join(rows)} must have the same number of rows, received "
            + ", ".join(map(str, rows.values()))
            + ": pass one target for each source."
        )
