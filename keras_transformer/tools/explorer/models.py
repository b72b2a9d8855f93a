"""The model that the explorer queries: a run in this process."""

import dataclasses
import os
import threading
from collections.abc import Iterable
from typing import Any

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.opening import Opened
from keras_transformer.special_ids import PAD, UNK

MAX_EXAMPLES = 4  # one that the page translates at first, and three more


class ModelInMemory:
    """A run in this process, which answers like the signatures of an export.

    Args:
        opened: A run; an export is refused.

    Attributes:
        name: The run's name, which is that of its directory.
        examples: Source sentences to try.
    """

    def __init__(self, opened: Opened) -> None:
        if opened.run is None:
            raise ValueError(
                f"{opened.path} is a SavedModel, which does not return all attention weights: give "
                "the run directory that it was exported from."
            )
        from keras_transformer.serving.served_translator import ServedTranslator

        self._path, self._run = os.path.abspath(opened.path), opened.run
        translator = opened.model
        self.name = os.path.basename(self._path)
        self.examples = select_examples(source for source, _ in self._run.read_examples())
        config = ExportConfig.for_search(translator.default_search, signatures=("beam", "sample"))
        widest = translator.model.target_vocabulary_size
        config = dataclasses.replace(config, beam_size=min(config.beam_size, widest))
        self._translator = translator
        self._served = ServedTranslator(translator, config)
        self._lock = threading.Lock()  # the first question of a kind traces a graph

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature: {name of an input: nested lists} to {name of an output: nested lists}.

        `explore` translates one text greedily after given ids, and returns the alternatives of each
        token and all attention weights. All are empty for a text without tokens.
        """
        from keras_transformer.serving.served_translator import run_signature

        if not self._run.has_model:
            raise ValueError(f"{self._path} is missing: restore it, or explore another model.")
        with self._lock:
            if signature == "explore":
                return self._explore(**inputs)
            return run_signature(self._served.functions, signature, inputs)

    def _explore(self, text, prefix, k):
        import tensorflow as tf

        from keras_transformer.serving.served_translator import to_lists
        from keras_transformer.translation.text_model import TEXT
        from keras_transformer.translation.translator import TARGET

        translator = self._translator
        size = translator.model.target_vocabulary_size
        ids = [token if token < size else UNK for token in prefix[0] if token != PAD]
        inputs = TEXT, TARGET, tf.TensorSpec([], tf.int32)
        function = translator.compiled(_explore, inputs, translator=translator)
        ids = tf.constant([ids[: translator.max_output_length]], tf.int32)
        answer, (is_empty,) = function(tf.constant(text), ids, tf.constant(min(k[0], size)))
        if is_empty:
            return {name: [[]] for name in answer} | {"text": [""], "log_prob": [0.0]}
        return {name: to_lists(value.numpy()) for name, value in answer.items()}

    def close(self) -> None:
        """Does nothing: the model is freed with this object."""


def _explore(text, prefix, k, translator):
    """Tables of one text: tokens `(1, S)` and `(1, T)`, the best `(1, T, k)`, and attention."""
    from keras_transformer.translation.inspection import all_attention, rank_tokens

    source, empty = translator.read_source(text)
    tokens, texts, log_prob, _ = translator.translate_ids(source, empty, prefix=prefix)
    tokens, to_pieces = tokens[:, 0], translator.target_tokenizer.pieces
    logits, attention = all_attention(translator.model, source, tokens)
    token_log_prob, best_ids, best_log_prob = rank_tokens(logits, tokens, k)
    answer = {
        "text": texts[:, 0],
        "log_prob": log_prob[:, 0],
        "source_tokens": translator.source_tokenizer.pieces(source),
        "target_tokens": to_pieces(tokens),
        "target_ids": tokens,
        "target_log_prob": token_log_prob,
        "best_tokens": to_pieces(best_ids),
        "best_ids": best_ids,
        "best_log_prob": best_log_prob,
    }
    return answer | attention, empty


def select_examples(sources: Iterable[str]) -> list[str]:
    """Returns the first different sentences that are not blank."""
    return list(dict.fromkeys(source for source in sources if source.strip()))[:MAX_EXAMPLES]
