"""Callbacks around the validations of a training."""

from typing import Any

import keras

from keras_transformer.runs.averaging import averaged_weights
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.translation.corpus_scores import corpus_scores
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Pairs


class AveragedValidation(keras.callbacks.Callback):
    """Validates the running mean of the weights where the optimizer keeps one (`use_ema`)."""

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the mean into the model."""
        self._averaged = averaged_weights(self.model)
        self._averaged.__enter__()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the weights back."""
        self._averaged.__exit__(None, None, None)


class TranslationScores(keras.callbacks.Callback):
    """Translates the validation set at the end of every epoch and logs `val_bleu`, `val_chrf`.

    `fit(…, steps_per_epoch=N)` makes that every N updates. Where the optimizer keeps a running mean
    of the weights, that is what translates. Must come before the callbacks that read the logs.

    A translation ends after ten tokens more than twice as many as the longest reference has: an
    untrained model would go on to its `max_length`, for minutes.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `Tokenizer`s of the model.
        bleu_tokenize: sacreBLEU's tokenizer; `"none"` for text that is tokenized already.
        batch_size: Number of sentences translated at once.
    """

    def __init__(
        self,
        pairs: Pairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        bleu_tokenize: str = "13a",
        batch_size: int = 256,
    ) -> None:
        super().__init__()
        self.sources, self.targets = ([pair[side] for pair in pairs] for side in (0, 1))
        self.tokenizers = source_tokenizer, target_tokenizer
        self.bleu_tokenize = bleu_tokenize
        self.batch_size = batch_size
        self._translator: Translator | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Adds the scores of greedy translations to `logs`."""
        if self._translator is None or self._translator.model is not self.model:
            longest = 2 * max(self.tokenizers[1](self.targets).row_lengths(), default=0)
            self._translator = Translator(self.model, *self.tokenizers, int(longest) + 10)
        with averaged_weights(self.model):
            outputs = self._translator.translate(self.sources, batch_size=self.batch_size)
        scores = corpus_scores(outputs, self.targets, self.bleu_tokenize)
        logs |= {"val_bleu": scores["bleu"], "val_chrf": scores["chrf"]}
