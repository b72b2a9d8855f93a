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
