"""The backend that Keras runs on, asked in one place."""

import keras
import numpy as np

from keras_transformer.typing import Tensor

# Other backends train with Keras' own step and multiply in Keras' own way.
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def values_of(tensor: Tensor) -> np.ndarray | None:
    """The values of a tensor; None where it has none yet: in a graph, or for Keras to trace."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, keras.KerasTensor) or (IS_TENSORFLOW and not hasattr(tensor, "numpy")):
        return None
    try:
        return keras.ops.convert_to_numpy(tensor)
    except TypeError:
        return None  # traced by JAX


def require_tensorflow(what: str) -> None:
    """Refuses what traces the model into a TensorFlow graph where the model is not TensorFlow's.

    Args:
        what: A name, what needs TensorFlow.

    Raises:
        ValueError: If Keras has another backend.
    """
    if not IS_TENSORFLOW:
        raise ValueError(
            f"{what} needs Keras' TensorFlow backend, this is {keras.backend.backend()}: set "
            "KERAS_BACKEND=tensorflow before Keras is imported; a saved model loads there too."
        )
