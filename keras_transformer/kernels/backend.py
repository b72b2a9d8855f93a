"""The backend that Keras runs on, asked in one place."""

import keras

# Other backends train with Keras' own step and multiply in Keras' own way.
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


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
