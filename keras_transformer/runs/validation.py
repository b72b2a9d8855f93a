"""Validation during a training, by callbacks, and of a finished model."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.data.dataset import make_dataset
from keras_transformer.data.pairs import read_sides
from keras_transformer.presets import SearchConfig, TrainConfig, resolve_search
from keras_transformer.presets.languages import Languages
from keras_transformer.runs.run import SCORES, Run
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.training.distribution import broadcast_from_chief, is_chief
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.optimizer import optimizer_of
from keras_transformer.translation.corpus_scores import corpus_scores
from keras_transformer.translation.text_model import begin_with_languages
from keras_transformer.translation.translator import Translator
from keras_transformer.utils import Pairs

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer


@contextlib.contextmanager
def ema_weights(model: "keras.Model") -> Iterator[None]:
    """Replaces the weights of a model by their exponential moving average (EMA) in a context.

    Does nothing without `use_ema`, or before the first step of a training.

    Args:
        model: A built model.

    Example:

    >>> model.compile(EMAAdam(1e-3, use_ema=True), SmoothedCrossEntropy(), jit_compile=False)
    >>> history = model.fit(dataset, shuffle=False, verbose=0)
    >>> with ema_weights(model):
    ...     model.save_weights("mean.weights.h5")
    """
    optimizer = optimizer_of(model)
    if not (optimizer and optimizer.use_ema and optimizer.built and optimizer.iterations.numpy()):
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
    """Validates the exponential moving average of the weights, if `use_ema` is set.

    Then it restores the weights, and these are what `ModelCheckpoint` and `EarlyStopping` keep. To
    keep the average, put `keras.callbacks.SwapEMAWeights(swap_on_epoch=True)` before those instead.

    Example:

    >>> model.compile(EMAAdam(1e-3, use_ema=True), SmoothedCrossEntropy(), jit_compile=False)
    >>> model.fit(dataset, validation_data=dataset, shuffle=False, callbacks=[EMAValidation()])
    """

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Replaces the weights by their average."""
        self._averaged = ema_weights(self.model)
        self._averaged.__enter__()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the weights."""
        self._averaged.__exit__(None, None, None)


class TranslationScores(keras.callbacks.Callback):
    """Translates the validation set at the end of every epoch and logs `val_bleu`, `val_chrf`.

    With `fit(…, steps_per_epoch=N)`, an epoch has N steps. With `use_ema`, the moving average of
    the weights translates. Must come before the callbacks that read the logs.

    The length of translations is limited to `10 + 2 * ratio * S`, where `S` is the length of the
    longest source of the batch and `ratio` is that of target to source tokens in the pairs: an
    untrained model would otherwise decode up to `max_length`, for minutes.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `Tokenizer`s of the model.
        bleu_tokenize: sacreBLEU's tokenizer; `"none"` for tokenized text.
        batch_size: Number of sentences translated at once.
        search: `SearchConfig`; by default greedy search, which takes the least time.
        source_end: Whether END is appended to sources.
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
        source_end: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.search = resolve_search(search, options)
        self.sources, self.targets = read_sides(pairs)
        self.tokenizers = source_tokenizer, target_tokenizer
        self.bleu_tokenize = bleu_tokenize
        self.batch_size = batch_size
        self.source_end = source_end
        self.languages = Languages()
        self._translator: Translator | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Adds the scores to `logs`."""
        strategy, scores = self.model.distribute_strategy, dict.fromkeys(SCORES, 0.0)
        with ema_weights(self.model):
            if is_chief(strategy):
                scores = self.measure(self.model)
        logs |= broadcast_from_chief(strategy, scores)

    def measure(self, model: "Transformer") -> dict[str, float]:
        """Scores the translations of a model: `{"val_bleu": …, "val_chrf": …}`."""
        if self._translator is None or self._translator.model is not model:
            self._translator = Translator(model, *self.tokenizers, source_end=self.source_end)
            self._translator.length_ratio = 2 * self._length_ratio()
            self._translator.languages = self.languages
        outputs = self._translator.translate(self.sources, self.batch_size, self.search)
        scores = corpus_scores(outputs, self.targets, self.bleu_tokenize)
        return {"val_bleu": scores["bleu"], "val_chrf": scores["chrf"]}

    def _length_ratio(self):
        """Returns the number of target tokens per source token, including END."""
        sides = zip(self.tokenizers, (self.sources, self.targets), strict=True)
        source, target = (
            len(texts) + int(tokenizer(texts).flat_values.shape[0]) for tokenizer, texts in sides
        )
        return target / max(source, 1)


class RunValidation:
    """Validates the models of a run by the loss, and with `validate_by="bleu"` also by BLEU.

    `dataset` is the `validation_data` of `fit`; `callbacks` log the scores, and come before those
    that read the logs.
    """

    def __init__(
        self, config: TrainConfig, pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer]
    ) -> None:
        languages = config.find_languages()
        self.dataset = make_dataset(
            pairs,
            *begin_with_languages(tokenizers, languages),
            config.tokens_per_batch,
            config.model.max_length,
            shuffle=False,
            source_end=config.source_end,
        )
        self.callbacks: list[keras.callbacks.Callback] = [EMAValidation()]
        self._translation = None
        if config.validate_by == "bleu":
            self._translation = TranslationScores(
                pairs,
                *tokenizers,
                config.bleu_tokenize,
                beam_size=config.validation_beam_size,
                source_end=config.source_end,
            )
            self._translation.languages = languages
            self.callbacks.append(self._translation)

    def __call__(self, model: "Transformer") -> dict[str, float]:
        """Returns the scores of a compiled model, with the names that `fit` logs."""
        values = model.evaluate(self.dataset, verbose=0, return_dict=True)
        scores = {"val_loss": float(values["loss"])}
        return scores | (self._translation.measure(model) if self._translation else {})


def validate_translator(run: Run, translator: Translator) -> dict[str, float]:
    """Validates a translator, whose model is compiled, like the models of a run.

    The scores, with the names that `fit` logs, are empty if the validation set of the run is
    missing or has changed, with a warning on stderr.
    """
    from keras_transformer.runs.training_data import valid_pairs  # imports Babel

    config = run.read_config()
    try:
        pairs = valid_pairs(run)
    except ValueError as error:
        print(f"warning: the model was not validated: {error}", file=sys.stderr)
        return {}
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    loss = SmoothedCrossEntropy(config.label_smoothing)
    translator.model.compile(loss=loss, jit_compile=False)
    return RunValidation(config, pairs, tokenizers)(translator.model)
