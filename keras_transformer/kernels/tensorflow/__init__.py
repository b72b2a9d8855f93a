"""Kernels that need TensorFlow; they are not imported on other Keras backends."""
