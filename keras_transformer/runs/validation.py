"""Validation of the models of a training: callbacks, and the same for a finished model."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_transformer.data.dataset import make_dataset
from keras_transformer.presets import SearchConfig, TrainConfig, resolve_search
from keras_transformer.runs.run import SCORES, Run
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.training.distribution import broadcast_from_chief, is_chief
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.translation.corpus_scores import corpus_scores
from keras_transformer.translation.translator import Translator
from keras_transformer.utils import Pairs, Tensor

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer


@contextlib.contextmanager
def ema_weights(model: "keras.Model") -> Iterator[None]:
    """Lets a model use the exponential moving average (EMA) of its weights for a while.

    Does nothing if the optimizer keeps none.

    Args:
        model: A compiled and built model.

    Example:

    >>> model.compile(EMAAdam(1e-3, use_ema=True), SmoothedCrossEntropy(), jit_compile=False)
    >>> history = model.fit(dataset, shuffle=False, verbose=0)
    >>> with ema_weights(model):
    ...     model.save_weights("mean.weights.h5")
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of loss scaling
    if not optimizer.use_ema:
        yield
        return
    weights = [variable.numpy() for variable in model.trainable_variables]
    model.optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        for variable, value in zip(model.trainable_variables, weights, strict=True):
            variable.assign(value)


class EMAValidation(keras.callbacks.Callback):
    """Validates the exponential moving average of the weights if there is one (`use_ema`).

    Example:

    >>> model.compile(EMAAdam(1e-3, use_ema=True), SmoothedCrossEntropy(), jit_compile=False)
    >>> model.fit(dataset, validation_data=dataset, shuffle=False, callbacks=[EMAValidation()])
    """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the average into the model."""
        self._averaged = ema_weights(self.model)
        self._averaged.__enter__()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the weights back."""
        self._averaged.__exit__(None, None, None)


class TranslationScores(keras.callbacks.Callback):
    """Translates the validation set at the end of every epoch and logs `val_bleu`, `val_chrf`.

    `fit(…, steps_per_epoch=N)` makes that every N steps. If the optimizer keeps an exponential
    moving average of the weights, that is what translates. Must come before the callbacks that read
    the logs.

    Translations end after ten tokens more than twice as many as, at the pairs' ratio of lengths,
    the longest source of their batch would have: an untrained model would go on to its
    `max_length`, for minutes.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `Tokenizer`s of the model.
        bleu_tokenize: sacreBLEU's tokenizer; `"none"` for text that is tokenized already.
        batch_size: Number of sentences translated at once.
        search: `SearchConfig`; by default greedy search, which takes the least time.
        **options: Fields of `SearchConfig`, such as `beam_size=5`, instead of `search`.

    Example:

    >>> scores = TranslationScores(pairs, tokenizer, tokenizer, bleu_tokenize="none")
    >>> history = model.fit(dataset, shuffle=False, callbacks=[scores], verbose=0)
    >>> sorted(history.history)
    ['loss', 'val_bleu', 'val_chrf']
    """

    def __init__(
        self,
        pairs: Pairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        bleu_tokenize: str = "13a",
        batch_size: int = 256,
        search: SearchConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.search = resolve_search(search, options)
        self.sources, self.targets = ([pair[side] for pair in pairs] for side in (0, 1))
        self.tokenizers = source_tokenizer, target_tokenizer
        self.bleu_tokenize = bleu_tokenize
        self.batch_size = batch_size
        self._translator: Translator | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Adds the scores to `logs`."""
        strategy, scores = self.model.distribute_strategy, dict.fromkeys(SCORES, 0.0)
        with ema_weights(self.model):
            if is_chief(strategy):
                scores = self.measure(self.model)
        logs |= broadcast_from_chief(strategy, scores)

    def measure(self, model: "Transformer") -> dict[str, float]:
        """Scores the translations of a model as it stands: `{"val_bleu": …, "val_chrf": …}`."""
        if self._translator is None or self._translator.model is not model:
            self._translator = _BoundedTranslator(model, *self.tokenizers, self._ratio())
        outputs = self._translator.translate(self.sources, self.batch_size, self.search)
        scores = corpus_scores(outputs, self.targets, self.bleu_tokenize)
        return {"val_bleu": scores["bleu"], "val_chrf": scores["chrf"]}

    def _ratio(self):
        """Target tokens for each source token, END included."""
        sides = zip(self.tokenizers, (self.sources, self.targets), strict=True)
        source, target = (
            len(texts) + int(tokenizer(texts).flat_values.shape[0]) for tokenizer, texts in sides
        )
        return target / max(source, 1)


class _BoundedTranslator(Translator):
    """Bounds the length of translations: an untrained model may not have learned to write END."""

    def __init__(
        self,
        model: keras.Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        ratio: float,
    ) -> None:
        super().__init__(model, source_tokenizer, target_tokenizer)
        self.ratio = ratio

    def bound(self, source: Tensor, longest: int) -> Tensor:
        """Steps that a search may take for ids `(B, S)`."""
        tokens = 2 * self.ratio * tf.cast(tf.shape(source)[1], tf.float32)
        return tf.minimum(longest, 10 + tf.cast(tf.math.ceil(tokens), tf.int32))


class RunValidation:
    """Validates the models of a run: by the loss and, with `validate_by="bleu"`, by translating.

    Args:
        config: `TrainConfig` of the run.
        pairs: The pairs to validate by.
        source_tokenizer, target_tokenizer: `Tokenizer`s of the run.

    Attributes:
        dataset: The `validation_data` of `fit`.
        callbacks: Callbacks that log the scores, in this order, before those that read the logs.
    """

    def __init__(
        self,
        config: TrainConfig,
        pairs: Pairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
    ) -> None:
        tokenizers = source_tokenizer, target_tokenizer
        self.dataset = make_dataset(
            pairs, *tokenizers, config.tokens_per_batch, config.model.max_length, shuffle=False
        )
        self.callbacks: list[keras.callbacks.Callback] = [EMAValidation()]
        self._translation = None
        if config.validate_by == "bleu":
            self._translation = TranslationScores(
                pairs,
                *tokenizers,
                config.bleu_tokenize,
                beam_size=config.validation_beam_size,
            )
            self.callbacks.append(self._translation)

    def __call__(self, model: "Transformer") -> dict[str, float]:
        """Validates a compiled model as it stands: its scores, by the names that `fit` logs."""
        self.dataset.stream.shard = (0, 1)  # while `fit` ran, those of one worker among others
        values = model.evaluate(self.dataset, verbose=0, return_dict=True)
        scores = {"val_loss": float(values["loss"])}
        return scores | (self._translation.measure(model) if self._translation else {})


def validate_as(run: Run, translator: Translator) -> dict[str, float]:
    """Validates a translator as the models of a run were.

    Args:
        run: `Run`.
        translator: `Translator`, whose model is compiled for it.

    Returns:
        Its scores, by the names that `fit` logs. If the pairs that the run was validated by
        are gone, none, and a sentence on stderr.
    """
    from keras_transformer.runs.training_data import valid_pairs  # which imports Babel

    config = run.read_config()
    try:
        pairs = valid_pairs(run)
    except ValueError as error:
        print(f"The model was not validated: {error}", file=sys.stderr)
        return {}
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    loss = SmoothedCrossEntropy(config.label_smoothing)
    translator.model.compile(loss=loss, jit_compile=False)
    return RunValidation(config, pairs, *tokenizers)(translator.model)
