"""The training step that `Transformer` has: ours on TensorFlow, Keras' own on other backends."""

from typing import Any

import keras

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.training.checked_fit import CheckedFit
from keras_transformer.training.names import refuse_probabilities, replace_names
from keras_transformer.typing import Config

if IS_TENSORFLOW:
    from keras_transformer.training.token_trainer import TokenTrainer as Trainer
else:

    class Trainer(CheckedFit):
        """Refuses the arguments of `TokenTrainer.compile` that Keras' own step knows nothing of."""

        def compile(
            self,
            *args: Any,
            clip_norm: float | None = None,
            accumulation_steps: int = 1,
            fused_loss: str | bool = "auto",
            **kwargs: Any,
        ) -> None:
            """Compiles as `keras.Model` does, with this package's losses and metrics by name too.

            Raises:
                ValueError: If `clip_norm`, `accumulation_steps` or `fused_loss` asks for something;
                    if a loss or metric would take logits for probabilities.
            """
            if clip_norm is not None or accumulation_steps != 1 or fused_loss is True:
                raise ValueError(
                    "clip_norm, accumulation_steps and fused_loss need Keras' TensorFlow backend, "
                    f"this is {keras.backend.backend()}: leave them out, or load a model that was "
                    "trained with them by load_model(path, compile=False)."
                )
            args, kwargs = replace_names((args, kwargs))
            if getattr(type(self), "softmax_inputs_of", None) is type(self).call:
                refuse_probabilities((args, kwargs))
            super().compile(*args, **kwargs)

        def compile_from_config(self, config: Config) -> None:
            """Compiles a model that was saved."""
            self.compile(**keras.saving.deserialize_keras_object(config))
            if self.optimizer is not None and self.built:
                self.optimizer.build(self.trainable_variables)


__all__ = ["Trainer"]
