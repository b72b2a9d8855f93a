"""Checks of what layers are made with and called with."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.kernels.backend import values_of
from keras_transformer.typing import Inputs, Tensor
from keras_transformer.wording import counted


def check_sizes(**sizes: Any) -> list[int]:
    """Reads sizes, which may be NumPy's integers.

    Raises:
        ValueError: If one is not a positive integer.
    """
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"{name} must be a positive integer, received {size!r}.")
    return [int(size) for size in sizes.values()]


def as_ids(ids: Any) -> Tensor:
    """A tensor of what should be ids `(B, T)`.

    Raises:
        ValueError: If the rows are ragged.
    """
    if hasattr(ids, "to_tensor") and hasattr(ids, "row_lengths"):
        raise ValueError(
            "Ids must be padded to one length, received a RaggedTensor: pass ids.to_tensor(), "
            "which pads with PAD."
        )
    return ops.convert_to_tensor(ids)


def check_ids(ids: Tensor, vocabulary_size: int) -> None:
    """Refuses ids of a wrong shape, and wrong values where they are known.

    Args:
        ids: What should be ids `(B, T)`.
        vocabulary_size: V.

    Raises:
        ValueError: If the shape has not two axes, or an id is no integer or not in the vocabulary.
    """
    if len(ids.shape) != 2:
        raise ValueError(
            f"Ids must have shape (batch, length), received {tuple(ids.shape)}: put a single "
            "sentence into a batch of one."
        )
    values = values_of(ids)
    if values is None or not values.size:
        return
    # Keras' inputs are floats unless told otherwise: whole numbers may come as such.
    if not np.issubdtype(values.dtype, np.integer) and (values != np.floor(values)).any():
        wrong = values[values != np.floor(values)][0]
        raise ValueError(f"Ids must be integers, received {wrong}: tokenize the text first.")
    if values.min() < 0 or values.max() >= vocabulary_size:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(
            f"Ids must lie in 0 … {vocabulary_size - 1} (vocabulary_size={vocabulary_size}), "
            f"received {wrong:.0f}: tokenize with the vocabulary that the model was built for."
        )


def nan_unless(valid: Tensor) -> Tensor:
    """Returns float32 numbers to add, of the shape of `valid`: 0, or NaN where that is False.

    For graphs, which cannot raise everywhere. It is not a constant, at which TensorFlow's
    `enable_check_numerics` would stop.
    """
    return ops.sqrt(ops.cast(valid, "float32") - 1.0)


def check_id_arrays(arrays: Any, vocabulary_sizes: Sequence[int]) -> None:
    """Does as `check_ids` for arrays, of which a compiled step would say less, or nothing.

    Args:
        arrays: As many ids `(B, T)` as there are vocabularies; what else comes is passed over.
        vocabulary_sizes: Of each, V.

    Raises:
        ValueError: As `check_ids` does.
    """
    if isinstance(arrays, (tuple, list)) and len(arrays) == len(vocabulary_sizes):
        for ids, vocabulary_size in zip(arrays, vocabulary_sizes, strict=True):
            if isinstance(ids, np.ndarray) and ids.ndim == 2:
                check_ids(ids, vocabulary_size)


def check_pair(inputs: Any, return_attention_scores: Any = False) -> Inputs:
    """Refuses what is not `(source, target)`, ids of as many sentences.

    Args:
        inputs: What should be two tensors of ids.
        return_attention_scores: The argument that comes next, where a target is put by mistake.

    Returns:
        `inputs`.

    Raises:
        ValueError: If it is something else.
    """
    if (
        not isinstance(inputs, (tuple, list))
        or len(inputs) != 2
        or not _is_bool(return_attention_scores)
    ):
        received = f"a {type(inputs).__name__}"
        if isinstance(inputs, dict):
            received += f" of {', '.join(map(repr, inputs))}"
        elif not isinstance(inputs, (tuple, list)):
            received = "one tensor" + (
                "" if _is_bool(return_attention_scores) else " after another"
            )
        elif len(inputs) != 2:
            received += f" of {len(inputs)}"
        raise ValueError(
            f"The inputs must be a pair (source, target) of ids, received {received}: call "
            "model((source, target)), and model.fit((source, target_in), target_out)."
        )
    check_rows(source=inputs[0], target=inputs[1])
    return inputs


def check_rows(**tensors: Tensor) -> None:
    """Refuses tensors with different numbers of rows, as far as they are known.

    Raises:
        ValueError: If they differ.
    """
    rows = {name: x.shape[0] for name, x in tensors.items() if getattr(x, "shape", ())}
    rows = {name: number for name, number in rows.items() if number is not None}
    if len(set(rows.values())) > 1:
        raise ValueError(
            "Each row belongs to one sentence, received "
            + " and ".join(f"{counted(number, 'row')} of {name}" for name, number in rows.items())
            + ": give each source its target."
        )


def _is_bool(value):
    return isinstance(value, (bool, int, np.bool_))
