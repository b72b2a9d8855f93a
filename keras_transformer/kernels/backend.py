"""The backend that Keras runs on, asked in one place."""

import keras

# Other backends train with Keras' own step and multiply in Keras' own way.
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
