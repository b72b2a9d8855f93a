"""An ensemble: several models that translate together by the mean of their probabilities.

Shapes: B batch, S source length, T target length, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import keras
from keras import ops

from keras_transformer.layers.composite import change_precision, find_sublayers
from keras_transformer.utils import Config, Nested, State, Step, Tensor

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer


@keras.saving.register_keras_serializable(package="keras_transformer")
class Ensemble(keras.Model):
    """Has what a `Translator` needs of a `Transformer`; attention is that of the first model.

    The logits are the logarithms of the mean probabilities. Architectures may differ, vocabularies
    may not.

    Args:
        models: Built `Transformer`s.

    Raises:
        ValueError: If the sizes of their vocabularies differ.
    """

    def __init__(self, models: "Sequence[Transformer]", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.models = list(models)
        sizes = [(x.source_vocabulary_size, x.target_vocabulary_size) for x in self.models]
        if len({*sizes}) > 1:
            raise ValueError(
                "The models of an ensemble need the same vocabularies, received models of "
                f"{' and '.join(map(str, dict.fromkeys(sizes)))} source and target ids."
            )
        self.source_vocabulary_size, self.target_vocabulary_size = sizes[0]
        self.max_length = min(model.max_length for model in self.models)
        self.built = True

    @property
    def num_heads(self) -> int:
        return self.models[0].num_heads

    @property
    def decoder(self) -> keras.layers.Layer:
        return self.models[0].decoder

    def call(self, inputs: tuple[Tensor, Tensor], return_attention_scores: bool = False) -> Nested:
        if return_attention_scores:
            logits, scores = self.models[0](inputs, return_attention_scores=True)
            return self._log_mean([logits, *(model(inputs) for model in self.models[1:])]), scores
        return self._log_mean([model(inputs) for model in self.models])

    def _log_mean(self, logits):
        return log_mean([x.suppress(one) for x, one in zip(self.models, logits, strict=True)])

    def suppress(self, logits: Tensor) -> Tensor:
        """Returns the logits: each model has suppressed its own ids."""
        return logits

    def initial_state(self, source: Tensor, length: int | None = None) -> State:
        return [model.initial_state(source, length) for model in self.models]

    def make_step(self, loop: str = "graph") -> Step:
        """See `Transformer.make_step`; the state is a list of those of the models."""
        steps = [model.make_step(loop) for model in self.models]

        def step(ids, position, states):
            pairs = [one(ids, position, x) for one, x in zip(steps, states, strict=True)]
            logits, states = zip(*pairs, strict=True)
            return log_mean(logits), list(states)

        step.takes_several = True  # type: ignore[attr-defined]
        return step

    def get_config(self) -> Config:
        models = [keras.saving.serialize_keras_object(model) for model in self.models]
        return super().get_config() | {"models": models}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        models = map(keras.saving.deserialize_keras_object, config["models"])
        return cls(**config | {"models": list(models)})


def log_mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities, from the logits `(..., V)` of each model."""
    together = ops.stack([ops.log_softmax(x) for x in logits])
    return ops.logsumexp(together, axis=0) - math.log(len(logits))


def combine(model: "Transformer | Sequence[Transformer]") -> Any:
    """Returns the model, or the ensemble of several; of one, the model itself."""
    models = list(model) if isinstance(model, Sequence) else [model]
    if not models:
        raise ValueError("Expected a model or several, received none.")
    return models[0] if len(models) == 1 else Ensemble(models)


def in_precision(model: Any, policy: str) -> Any:
    """Returns a model with another dtype policy and equal weights; itself if it has the policy."""
    if isinstance(model, Ensemble):
        models = [in_precision(one, policy) for one in model.models]
        return model if models == model.models else Ensemble(models)
    if model.dtype_policy.name == policy:
        return model
    twin = type(model).from_config(change_precision(model.get_config(), policy))
    for (_, own), (_, other) in zip(find_sublayers(model), find_sublayers(twin), strict=True):
        if getattr(own, "lora_enabled", False):  # which no configuration keeps
            other.enable_lora(own.lora_rank, lora_alpha=own.lora_alpha)
    twin.set_weights(model.get_weights())
    return twin
