"""The backend that Keras runs on."""

import keras
import numpy as np

from keras_transformer.utils import Tensor

# Other backends use Keras' own training step and matrix products.
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def values_of(tensor: Tensor) -> np.ndarray | None:
    """Returns the values of a tensor, or None if they are unknown, as in a graph."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, keras.KerasTensor) or (IS_TENSORFLOW and not hasattr(tensor, "numpy")):
        return None
    try:
        return keras.ops.convert_to_numpy(tensor)
    except TypeError:
        return None  # traced by JAX


def nan_unless(valid: Tensor) -> Tensor:
    """Returns 0 where `valid` is True, else NaN, for graphs to add: they cannot raise everywhere.

    TensorFlow's `enable_check_numerics` rejects a constant NaN.
    """
    return keras.ops.sqrt(keras.ops.cast(valid, "float32") - 1.0)


def require_tensorflow(feature: str) -> None:
    """Checks that Keras uses the TensorFlow backend, which a feature needs."""
    if not IS_TENSORFLOW:
        raise ValueError(
            f"{feature} needs Keras' TensorFlow backend, this is {keras.backend.backend()}: set "
            "KERAS_BACKEND=tensorflow before importing Keras; it loads models saved on any backend."
        )
