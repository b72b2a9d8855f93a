"""Kernels that need TensorFlow itself; other backends of Keras import nothing of this."""
