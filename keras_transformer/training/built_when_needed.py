"""A model that builds itself when its weights are first needed."""

import contextlib
import os
from typing import Any

import numpy as np

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.training.token_trainer import TokenTrainer
from keras_transformer.utils import Nested, Path

if IS_TENSORFLOW:
    from keras_transformer.kernels.tensorflow import outside_of_traces


class BuiltWhenNeeded(TokenTrainer):
    """Base of a `TokenTrainer` whose `build` needs no shapes of inputs.

    It is built by the first method that needs its weights. The subclass also sets
    `input_signature`.
    """

    input_signature: Any

    def build_if_needed(self) -> None:
        """Builds the model in the scope of its strategy, unless it is built already."""
        if self.built:
            return
        with contextlib.ExitStack() as scopes:
            if IS_TENSORFLOW:
                scopes.enter_context(outside_of_traces())
                scopes.enter_context(self.distribute_strategy.scope())
            self.build()

    def count_params(self) -> int:
        self.build_if_needed()
        return super().count_params()

    def summary(self, *args: Any, **kwargs: Any) -> None:
        self.build_if_needed()
        super().summary(*args, **kwargs)

    def get_weights(self) -> list[np.ndarray]:
        self.build_if_needed()
        return super().get_weights()

    def set_weights(self, weights: list[np.ndarray]) -> None:
        self.build_if_needed()
        super().set_weights(weights)

    def save(self, filepath: Path, *args: Any, **kwargs: Any) -> None:
        self.build_if_needed()
        super().save(filepath, *args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        self.build_if_needed()
        super().save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        self.build_if_needed()
        super().load_weights(*args, **kwargs)

    def stateless_call(self, *args: Any, **kwargs: Any) -> Nested:
        self.build_if_needed()
        return super().stateless_call(*args, **kwargs)

    def export(
        self,
        filepath: Path,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Nested = None,
        **kwargs: Any,
    ) -> None:
        """Exports `call`, see `keras.Model.export`; `input_signature` defaults to the class's.

        To export a search from text to text, use `kt.export(translator, base)`.

        Raises:
            ValueError: If the format is `"onnx"` or `"litert"` and the model computes in half
                precision, of which the converters make files that cannot be run; or if ONNX has no
                such operation, as for the activations "gelu" and "celu".
        """
        if format in ("onnx", "litert") and self.compute_dtype != "float32":
            raise ValueError(
                f"format={format!r} needs a model that computes in float32, this one computes in "
                f'{self.compute_dtype}: load its run with precision="float32", or copy its weights '
                'into a model with dtype="float32".'
            )
        self.build_if_needed()
        # By default, Keras would export float inputs.
        signature = self.input_signature if input_signature is None else input_signature
        super().export(filepath, format, verbose, signature, **kwargs)
        if format == "onnx":
            _check_onnx(os.fspath(filepath))


def _check_onnx(path):
    """Deletes a file with an operation that ONNX does not have, of which tf2onnx only warns."""
    import onnx

    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        os.remove(path)
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} could not be run and is deleted, as ONNX lacks an operation ({reason}): use "
            "another format, or an activation such as relu or silu instead of gelu and celu."
        ) from error
