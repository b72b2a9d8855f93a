"""Answers the requests of the page with dicts that JSON can represent.

Shapes: S source length, T target length, N layers, H heads.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np

from keras_transformer.translation.results import LEAST_LOG_PROB

MAX_CHARACTERS = 10_000  # of a text
DIGITS = 4  # after the point, of weights
SAMPLES = 5  # per request
MAX_BEST = 20  # alternatives of each token
MISSING = (
    "This export has no signature {name}, {what}: export the run again with {name} among "
    "--signatures, or give the run directory."
)
EXAMPLE = " For example: keras-transformer export RUN BASE --signatures beam sample explore."
USES = {
    "explore": "which computes attention and alternative tokens",
    "beam": "which translates by beam search",
    "sample": "which samples translations",
}


class InvalidRequest(ValueError):
    """An invalid request, or one that the model has no signature for."""


class Model(Protocol):
    """`ExportedModel` or `ModelInMemory`."""

    name: str
    examples: list[str]

    @property
    def signatures(self) -> Collection[str]:
        """Names of its signatures."""

    def ask(self, signature: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
        """Asks a signature."""

    def close(self) -> None:
        """Frees what it holds."""


def describe(model: Model, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model's name and examples, and a sentence for each missing signature."""
    missing = {
        name: MISSING.format(name=name, what=what)
        for name, what in USES.items()
        if name not in model.signatures
    }
    if "explore" in missing:
        missing["explore"] += EXAMPLE
    return {"name": model.name, "examples": model.examples, "missing": missing}


def explore(model: Model, request: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a text after a prefix, with the alternatives of each token and all attention.

    An export without the signature `explore` answers with its translation alone.

    Args:
        model: The model that answers.
        request: `text`; `prefix`, ids that the translation begins with; `k`, how many of the most
            probable tokens to return for each step.

    Returns:
        `text`, `log_prob`; and `source`, S strings, `steps`, for each of T tokens `{"token", "id",
        "log_prob", "best": [{"token", "id", "log_prob"}]}`, and `attention`, nested lists
        `{"encoder": (N, H, S, S), "decoder": (N, H, T, T), "cross": (N, H, T, S)}`.
    """
    text = _read_text(request)
    if "explore" not in model.signatures:
        answer = _only_row(model.ask("serving_default", {"text": [text]}))
        return {"text": answer["text"], "log_prob": answer["log_prob"]}
    prefix = request.get("prefix", [])
    if not isinstance(prefix, list) or not all(type(i) is int and 0 <= i < 2**31 for i in prefix):
        raise InvalidRequest("prefix must be a list of ids, which are non-negative integers.")
    k = int(_read_number(request, "k", 10, 1, MAX_BEST))
    answer = _only_row(model.ask("explore", {"text": [text], "prefix": [prefix], "k": [k]}))
    best = zip(answer["best_tokens"], answer["best_ids"], answer["best_log_prob"], strict=True)
    target = zip(
        answer["target_tokens"], answer["target_ids"], answer["target_log_prob"], best, strict=True
    )
    attention = {kind: answer[kind] for kind in ("encoder", "decoder", "cross")}
    return {
        "text": answer["text"],
        "log_prob": answer["log_prob"],
        "source": [token for token in answer["source_tokens"] if token],
        "steps": [
            _token(*token) | {"best": [_token(*one) for one in zip(*some, strict=True)]}
            for *token, some in target
            if token[0]
        ],
        "attention": {
            kind: np.round(np.array(maps, np.float64), DIGITS).tolist()
            for kind, maps in attention.items()
        },
    }


def n_best(model: Model, request: Mapping[str, Any]) -> dict[str, Any]:
    """Translates a `text` by beam search: texts, log_probs and scores, the best first."""
    answer = _only_row(model.ask("beam", {"text": [_read_text(request)]}))
    scores = answer.get("score", answer["log_prob"])  # older exports have none
    rows = zip(answer["text"], answer["log_prob"], scores, strict=True)
    keys = "text", "log_prob", "score"
    return {
        "translations": [
            dict(zip(keys, row, strict=True)) for row in rows if row[1] > LEAST_LOG_PROB
        ]
    }


def samples(model: Model, request: Mapping[str, Any]) -> dict[str, Any]:
    """Samples translations of a `text` with a `temperature` and a `seed`."""
    temperature = _read_number(request, "temperature", 1.0, 0.01, 100.0)
    seed = int(_read_number(request, "seed", 1, 0, 2**53))
    inputs = {
        "text": [_read_text(request)] * SAMPLES,
        "temperature": [temperature] * SAMPLES,
        "top_k": [0] * SAMPLES,
        "top_p": [1.0] * SAMPLES,
        "seed": [seed + draw for draw in range(SAMPLES)],
    }
    answer = model.ask("sample", inputs)
    rows = zip(answer["text"], answer["log_prob"], strict=True)
    return {"translations": [{"text": text, "log_prob": log_prob} for text, log_prob in rows]}


# By the last segment of the address.
QUESTIONS: dict[str, Callable[[Model, Mapping[str, Any]], dict[str, Any]]] = {
    "model": describe,
    "explore": explore,
    "n-best": n_best,
    "samples": samples,
}
REQUIRED = {"n-best": "beam", "samples": "sample"}  # signatures


def answer(model: Model, question: str, request: object) -> dict[str, Any]:
    """Answers one of `QUESTIONS`.

    Args:
        model: The model that answers.
        question: Name of the question.
        request: Its parameters, as decoded from JSON.

    Returns:
        A dict that JSON can hold.
    """
    if not isinstance(request, dict):
        raise InvalidRequest("Expected a JSON object.")
    name = REQUIRED.get(question)
    if name is not None and name not in model.signatures:
        raise InvalidRequest(MISSING.format(name=name, what=USES[name]))
    return QUESTIONS[question](model, request)


def _only_row(answer):
    """The only row of an answer."""
    return {key: rows[0] for key, rows in answer.items()}


def _token(token, number, log_prob):
    return {"token": token, "id": number, "log_prob": log_prob}


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
