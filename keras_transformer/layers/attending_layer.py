"""The base of all layers that attend: the way they are called."""

import inspect
from typing import Any

import keras

from keras_transformer.layers.changes import KeepsChanges
from keras_transformer.typing import Nested


class AttendingLayer(KeepsChanges):
    """Base of the layers that take masks and can return their attention weights."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        call = vars(cls).get("call")
        kinds = {p.kind for p in inspect.signature(call).parameters.values()} if call else set()
        if call and kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            # Of `call(self, *args, **kwargs)`, Keras would not know which arguments are masks.
            call.__signature__ = inspect.signature(super(cls, cls).call)

    def __call__(self, *args: Any, **kwargs: Any) -> Nested:
        # Keras hands over the masks that tensors carry by name, and would pass a mask twice that
        # was given as None by position: so everything goes by name.
        return super().__call__(**inspect.signature(self.call).bind(*args, **kwargs).arguments)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Nested:
        # Traces call: what it returns depends on return_attention_scores.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
