"""What all layers that attend have in common: how they are called."""

import inspect

import keras


class AttendingLayer(keras.layers.Layer):
    """Base of the layers that take masks and can return their attention weights."""

    def __call__(self, *args, **kwargs):
        # Keras hands over the masks that tensors carry by name, and would pass a mask twice that
        # was given as None by position: so everything goes by name.
        return super().__call__(**inspect.signature(self.call).bind(*args, **kwargs).arguments)

    def compute_output_spec(self, *args, **kwargs):
        # Traces call: what it returns depends on return_attention_scores.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
