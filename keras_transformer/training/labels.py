"""Labels of losses and metrics: checks, and the weights of labels.

Shapes: B batch, T target length, V vocabulary.
"""

import re
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.backend import values_of
from keras_transformer.layers.arguments import IDS_SCOPE, wrong_id
from keras_transformer.special_ids import PAD
from keras_transformer.utils import Tensor

# Name scope of the operations that fail if a graph runs with invalid labels.
SCOPE = "checked_labels"
_SHAPE_ERROR = re.compile(
    r"\[([\d,]*)\] (?:!= values\[1\]\.shape =|is not compatible with expected shape) \[([\d,?]*)\]"
)
_VALUE_ERROR = re.compile(r"= (-?\d+) is not in \[0, (\d+)\)")


def token_weights(
    labels: Tensor,
    sample_weight: Tensor | None = None,
    dtype: str = "float32",
    vocabulary_size: int | Tensor | None = None,
) -> Tensor:
    """Returns the weights `(B, T)` of labels: 0 for PAD and negative labels.

    `sample_weight` has shape `(B,)` or `(B, T)`. With `vocabulary_size`, invalid labels get weight
    NaN: a graph may not raise.
    """
    labels = _cast_labels(labels)
    weights = ops.cast(ops.greater(labels, PAD), dtype)
    if vocabulary_size is not None:
        invalid = ops.greater_equal(labels, vocabulary_size)
        if keras.backend.is_float_dtype(labels.dtype):
            invalid = ops.logical_or(invalid, ops.not_equal(labels, ops.floor(labels)))
        weights = ops.where(invalid, ops.cast(float("nan"), dtype), weights)
    if sample_weight is None:
        return weights
    given = ops.cast(sample_weight, dtype)
    shape, expected = _static_shape(given), _static_shape(labels)
    if shape is None:
        return weights * ops.reshape(given, (ops.shape(labels)[0], -1))
    if not _shapes_match(shape, expected[: len(shape)], 1):
        raise ValueError(
            "sample_weight must have shape (batch,), one weight for each row, or (batch, length), "
            f"one for each label: received {shape} for labels of shape {expected}."
        )
    for _ in expected[len(shape) :]:
        given = ops.expand_dims(given, -1)
    return weights * given


def read_labels(
    labels: Tensor,
    outputs: Tensor,
    vocabulary_size: int | Tensor,
    sample_weight: Tensor | None = None,
    dtype: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Returns ids, PAD for labels that do not count, and weights of the labels of `(B, T, …)`.

    In a compiled function, which cannot raise, an invalid label has weight NaN.
    """
    labels, shape = _check_type(labels), ops.shape(outputs)[:-1]
    received, expected = _static_shape(labels), _static_shape(outputs)[:-1]
    if len(expected) < 2:
        raise ValueError(
            "Outputs must be logits of shape (batch, length, vocabulary), received shape "
            f"{tuple(outputs.shape)}: for classes, use keras.losses.SparseCategoricalCrossentropy "
            "and its metrics, since label 0 (PAD) is ignored here."
        )
    if received is not None and not _shapes_match(received, expected):
        raise ValueError(_wrong_shape(received, expected))
    check_label_array(labels, vocabulary_size)
    labels = _cast_labels(labels)
    with keras.name_scope(SCOPE):
        unknown = received is None or None in received + expected
        if unknown and not any(size is None for size in shape):  # None for KerasTensors
            # A sum of two tensors compares their shapes when the graph runs.
            labels = ops.sum(ops.stack([labels, ops.zeros(shape, labels.dtype)]), axis=0)
        weights = token_weights(labels, sample_weight, dtype, vocabulary_size)
        ids = ops.cast(ops.where(ops.greater(labels, PAD), labels, PAD), "int32")
        # A lookup: on a CPU it raises; elsewhere it replaces invalid labels by valid ids.
        return ops.take(ops.arange(vocabulary_size, dtype="int32"), ids, axis=0), weights


def check_label_array(labels: Any, vocabulary_size: int) -> None:
    """Checks labels, if their values are known: not in a graph."""
    values = values_of(_check_type(labels))
    if values is None or not values.size:
        return
    if not np.issubdtype(values.dtype, np.integer):
        wrong = values[values != np.floor(values)]
        if wrong.size:
            raise ValueError(f"Labels must be whole numbers, received {wrong[0]}.")
    if values.max() >= vocabulary_size:
        raise ValueError(_wrong_value(int(values.max()), vocabulary_size))


def explain_failure(message: str) -> str | None:
    """Returns a clear message for a graph's error about invalid ids; None for other errors."""
    found = _VALUE_ERROR.search(message)
    if IDS_SCOPE in message and found:
        received, size = map(int, found.groups())
        # Negative ids arrive as V.
        return wrong_id(f"{received}" + " or a negative one" * (received == size), size)
    if SCOPE not in message:
        return None
    if found := _SHAPE_ERROR.search(message):
        return _wrong_shape(*(f"({shape.replace(',', ', ')})" for shape in found.groups()))
    found = _VALUE_ERROR.search(message)
    return found and _wrong_value(*found.groups())


def _wrong_shape(received, expected):
    return (
        "Labels must hold one id for each position of the outputs, with shape "
        f"{expected}, received shape {received}: from padded ids (batch, length), make target "
        "inputs ids[:, :-1] and labels ids[:, 1:]."
    )


def _wrong_value(label, vocabulary_size):
    return (
        f"Labels must be below {vocabulary_size}, the size of the vocabulary, received the label "
        f"{label}: tokenize with the vocabulary that the model was built for. Labels of 0 (PAD) "
        "and negative labels are ignored."
    )


def _check_type(labels: Any) -> Tensor:
    """Raises for labels that are not numbers; returns an array or tensor."""
    if hasattr(labels, "to_tensor") and hasattr(labels, "row_lengths"):
        raise ValueError(
            "Labels must be padded to one length, received a RaggedTensor: pass "
            "labels.to_tensor(), which pads with PAD."
        )
    labels = labels if hasattr(labels, "dtype") else np.asarray(labels)
    dtype = _dtype(labels)
    if not dtype.startswith(("int", "uint", "float", "bfloat", "bool")):
        raise ValueError(f"Labels must be ids, received type {dtype}: tokenize the text first.")
    return labels


def _cast_labels(labels):
    """Casts labels to a dtype that holds any id."""
    labels = _check_type(labels)
    dtype = _dtype(labels)
    if dtype in ("bool", "int8", "uint8", "int16", "uint16"):
        dtype = "int32"
    return ops.cast(labels, "float32" if dtype in ("float16", "bfloat16") else dtype)


def _dtype(labels):
    try:
        return keras.backend.standardize_dtype(labels.dtype)
    except ValueError:  # NumPy's strings and objects
        return str(labels.dtype)


def _static_shape(x):
    """Returns the shape, as far as it is known; None for a TensorFlow tensor of unknown rank."""
    return None if getattr(x.shape, "rank", 0) is None else tuple(x.shape)


def _shapes_match(shape, expected, *others):
    return len(shape) == len(expected) and all(
        size in (None, *others) or other in (None, size)
        for size, other in zip(shape, expected, strict=True)
    )


def sum_dtype() -> str:
    """Returns the dtype of sums over tokens: float32, or Keras' floatx if that is wider.

    float16 ends at 65,504, and skips integers beyond 2,048; bfloat16 beyond 256.
    """
    return "float64" if keras.config.floatx() == "float64" else "float32"
