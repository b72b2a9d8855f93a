"""The run that the explorer shows, and its answers to the requests of the page.

Shapes: S source length, T target length, N layers, H heads.
"""

import dataclasses
import os
import threading
from typing import Any

import numpy as np

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.opening import Opened
from keras_transformer.special_ids import PAD, UNK
from keras_transformer.translation.sentences import LEAST_LOG_PROB

MAX_EXAMPLES = 4  # one that the page translates at first, and three more
MAX_CHARACTERS = 10_000  # of a text
DIGITS = 4  # after the point, of weights
SAMPLES = 5  # per request
MAX_BEST = 20  # alternatives of each token
KINDS = "encoder", "decoder", "cross"


class InvalidRequest(ValueError):
    """An invalid request."""


class ExploredRun:
    """A run that answers requests of the page with dicts that JSON can represent.

    Attributes:
        questions: {last segment of the address: function of the request, a dict}.
    """

    def __init__(self, opened: Opened) -> None:
        if opened.run is None:
            raise ValueError(
                f"{opened.path} is a SavedModel, which does not return all attention weights: give "
                "the run directory that it was exported from."
            )
        self._path, self._run = os.path.abspath(opened.path), opened.run
        self._translator = opened.model
        search = ExportConfig.for_search(self._translator.default_search).search
        widest = self._translator.model.target_vocabulary_size
        self._search = dataclasses.replace(search, beam_size=min(search.beam_size, widest))
        self._lock = threading.Lock()  # the first question of a kind traces a graph
        self.questions = {
            "model": self._describe,
            "explore": self._explore,
            "n-best": self._translate_n_best,
            "samples": self._sample,
        }

    def answer(self, question: str, request: object) -> dict[str, Any]:
        """Answers one of `questions`."""
        if not isinstance(request, dict):
            raise InvalidRequest("Expected a JSON object.")
        if not self._run.has_model:
            raise ValueError(f"{self._path} is missing: restore it, or explore another model.")
        with self._lock:
            return self.questions[question](request)

    def _describe(self, request):
        """Returns the model's name, and examples to try."""
        sources = (source for source, _ in self._run.read_examples() if source.strip())
        examples = list(dict.fromkeys(sources))[:MAX_EXAMPLES]
        return {"name": os.path.basename(self._path), "examples": examples}

    def _explore(self, request):
        """Translates `text` after `prefix`, ids, with the `k` most probable tokens of each step.

        Returns:
            `text`, `log_prob`; and `source`, S strings, `steps`, for each of T tokens `{"token",
            "id", "log_prob", "best": [{"token", "id", "log_prob"}]}`, and `attention`, nested lists
            `{"encoder": (N, H, S, S), "decoder": (N, H, T, T), "cross": (N, H, T, S)}`.
        """
        import tensorflow as tf

        from keras_transformer.translation.text_model import TEXT
        from keras_transformer.translation.translator import TARGET

        text, prefix = _read_text(request), request.get("prefix", [])
        if not isinstance(prefix, list) or not all(
            type(i) is int and 0 <= i < 2**31 for i in prefix
        ):
            raise InvalidRequest("prefix must be a list of ids, which are non-negative integers.")
        size = self._translator.model.target_vocabulary_size
        k = min(int(_read_number(request, "k", 10, 1, MAX_BEST)), size)
        ids = [i if i < size else UNK for i in prefix if i != PAD]
        ids = ids[: self._translator.max_output_length]
        inputs = TEXT, TARGET, tf.TensorSpec([], tf.int32)
        function = self._translator.compiled(_inspect, inputs, translator=self._translator)
        found = function(tf.constant([text]), tf.constant([ids], tf.int32), tf.constant(k))
        is_empty, found = bool(found.pop("empty")), {x: found[x].numpy() for x in found}
        if is_empty:
            empty: dict[str, Any] = {"source": [], "steps": []}
            return {"text": "", "log_prob": 0.0, "attention": dict.fromkeys(KINDS, [])} | empty
        steps = []
        for number in range(len(found["target"])):
            target, taken, log_prob, *best = (
                found[x][number]
                for x in ("target", "ids", "log_probs", "best", "best_ids", "best_log_probs")
            )
            alternatives = [_describe_token(*one) for one in zip(*best, strict=True)]
            steps.append(_describe_token(target, taken, log_prob) | {"best": alternatives})
        attention = {kind: np.round(found[kind].astype(np.float64), DIGITS) for kind in KINDS}
        return {
            "text": _decode(found["text"]),
            "log_prob": float(found["log_prob"]),
            "source": [_decode(token) for token in found["source"]],
            "steps": steps,
            "attention": {kind: maps.tolist() for kind, maps in attention.items()},
        }

    def _translate_n_best(self, request):
        """Translates `text` by beam search: texts, log_probs and scores, the best first."""
        text = _read_text(request)
        (found,) = self._translator.translate_n_best([text], search=self._search)
        found = [one._asdict() for one in found if one.log_prob > LEAST_LOG_PROB]
        return {"translations": found}

    def _sample(self, request):
        """Samples translations of `text` with a `temperature` and a `seed`."""
        import tensorflow as tf

        from keras_transformer.translation.text_model import TEXT
        from keras_transformer.translation.translator import SEEDS

        text = _read_text(request)
        temperature = _read_number(request, "temperature", 1.0, 0.01, 100.0)
        seed = int(_read_number(request, "seed", 1, 0, 2**53))
        inputs = TEXT, SEEDS, tf.TensorSpec([None], tf.float32)
        function = self._translator.compiled(_draw, inputs, translator=self._translator)
        seeds = tf.constant([seed + draw for draw in range(SAMPLES)], tf.int64)
        found = function([text] * SAMPLES, seeds, [temperature] * SAMPLES)
        rows = zip(found["text"].numpy(), found["log_prob"].numpy(), strict=True)
        return {"translations": [{"text": _decode(x), "log_prob": float(y)} for x, y in rows]}


def _inspect(text, prefix, k, translator):
    """Translates one text: tokens (S,) and (T,), the best (T, k), and attention; all at once."""
    from keras_transformer.translation.inspection import all_attention, rank_tokens

    source, empty = translator.read_source(text)
    tokens, texts, log_prob, _ = translator.translate_ids(source, empty, prefix=prefix)
    tokens, to_pieces = tokens[:, 0], translator.target_tokenizer.pieces
    logits, attention = all_attention(translator.model, source, tokens)
    log_probs, best_ids, best_log_probs = rank_tokens(logits, tokens, k)
    found = {
        "empty": empty,
        "text": texts[:, 0],
        "log_prob": log_prob[:, 0],
        "source": translator.source_tokenizer.pieces(source),
        "target": to_pieces(tokens),
        "ids": tokens,
        "log_probs": log_probs,
        "best": to_pieces(best_ids),
        "best_ids": best_ids,
        "best_log_probs": best_log_probs,
    }
    return {name: value[0] for name, value in (found | attention).items()}


def _draw(text, seeds, temperature, translator):
    import tensorflow as tf

    every = {"top_k": tf.zeros_like(seeds, tf.int32), "top_p": tf.ones_like(temperature)}
    return translator.best(text, seeds=seeds, temperature=temperature, **every)


def _describe_token(token, number, log_prob):
    return {"token": _decode(token), "id": int(number), "log_prob": float(log_prob)}


def _decode(text):
    return text.decode(errors="replace")


def _read_text(request):
    text = request.get("text")
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise InvalidRequest(f"text must be a string of at most {MAX_CHARACTERS} characters.")
    # JSON may contain lone surrogates, which are not characters.
    return text.encode("utf-8", "replace").decode()


def _read_number(request, name, default, minimum, maximum):
    value = request.get(name, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:
        raise InvalidRequest(f"{name} must be a number from {minimum} to {maximum}.")
    return value
