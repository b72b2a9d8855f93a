"""Exported versions as their clients know them: directories, signatures and cards. No TensorFlow.

No signature refuses a long source: with more than the model's `max_length` tokens, END included,
all after the first `max_length` - 1 are ignored.

Shapes: B batch, S source length, T target length, N hypotheses for each text.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.utils import Path, check_types, read_sealed

PARTS: dict[str, dict[str, type]] = {  # of a card, with the types of the fields that are read
    "architecture": {"max_length": int},
    "precision": {"computation": str},
    "recipe": {"bleu_tokenize": str},
    "imported": {"language_tags": list},
    "vocabulary": {"source": dict, "target": dict, "end": str},
    "signatures": {},
    "versions": {},
}
CARD = "model.json"
PLACEHOLDERS = ("a", "b c", "")  # example texts of a model exported without pairs
BEAM_OPTIONS = ("beam_size", "length_penalty", "length_norm")  # that the signature beam fixes
DEFAULT = "serving_default"  # the signature of requests that name none
MAX_VERSION = 2**63 - 1  # TF Serving keeps versions as int64
# What TF Serving reads as a version: "7", and "00007" as well. int() would also take "1_000".
VERSION_NAME = re.compile(r"\s*\+?[0-9]+\s*")

# {name: (shape, dtype)}; None is an unknown size.
Tensors: TypeAlias = dict[str, tuple[list[int | None], str]]
# {name of a signature: tf.function}.
Functions: TypeAlias = dict[str, Any]


class Signature(NamedTuple):
    """The contract of one signature.

    A server may batch requests if axis 0 of every tensor is the batch, and no other axis depends on
    the rest of the batch.
    """

    inputs: Tensors
    outputs: Tensors
    batchable: bool


_ROWS: list[int | None] = [None]  # (B,)
_TABLE: list[int | None] = [None, None]  # (B, anything)
_STEPS: list[int | None] = [None, None, None]  # (B, T, S)
_TEXT = (_ROWS, "string")
_LOG_PROB = (_ROWS, "float32")

SIGNATURES = {
    # Greedy search: for requests that name no signature.
    DEFAULT: Signature(dict(text=_TEXT), dict(text=_TEXT, log_prob=_LOG_PROB), True),
    # The N best of a beam search, and the scores that rank them; the export fixes N and α.
    "beam": Signature(
        dict(text=_TEXT),
        dict(text=(_TABLE, "string"), log_prob=(_TABLE, "float32"), score=(_TABLE, "float32")),
        True,
    ),
    # Sampling. A row's sample depends on its own five values only.
    "sample": Signature(
        dict(
            text=_TEXT,
            temperature=(_ROWS, "float32"),
            top_k=(_ROWS, "int32"),
            top_p=(_ROWS, "float32"),
            seed=(_ROWS, "int64"),
        ),
        dict(text=_TEXT, log_prob=_LOG_PROB),
        True,
    ),
    # How probable a given target is, and its number of tokens, END included.
    "score": Signature(
        dict(source=_TEXT, target=_TEXT),
        dict(log_prob=_LOG_PROB, tokens=(_ROWS, "int32")),
        True,
    ),
    # The translation, the tokens of both sides, and the cross-attention (B, T, S).
    "attention": Signature(
        dict(text=_TEXT),
        dict(
            text=_TEXT,
            source_tokens=(_TABLE, "string"),
            target_tokens=(_TABLE, "string"),
            attention=(_STEPS, "float32"),
        ),
        False,
    ),
    # For clients that tokenize themselves: ids (B, S) to ids (B, T), padded with 0.
    "tokens": Signature(
        dict(ids=(_TABLE, "int32")), dict(ids=(_TABLE, "int32"), log_prob=_LOG_PROB), False
    ),
}


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Puts names of signatures into their usual order, `serving_default` among them."""
    names = (names,) if isinstance(names, str) else names
    unknown = sorted(set(names) - set(SIGNATURES))
    if unknown:
        raise ValueError(f"Unknown signature {unknown[0]!r}: choose from {', '.join(SIGNATURES)}.")
    return tuple(name for name in SIGNATURES if name in names or name == DEFAULT)


def make_inputs(
    name: str,
    texts: Sequence[str | bytes],
    targets: Sequence[str | bytes] | None = None,
) -> dict[str, list[Any]]:
    """A request to a signature: {name of an input: list}, texts and usual values for the others.

    Without `targets`, the texts are their own.
    """
    rows = len(texts)
    # Any ids will do, including unknown ones.
    ids = [[7919 * row * k % 100_003 - 1 for k in range(5)] for row in range(rows)]
    values: dict[str, list[Any]] = {
        "text": list(texts),
        "source": list(texts),
        "target": list(texts if targets is None else targets),
        "temperature": [1.0] * rows,
        "top_k": [0] * rows,
        "top_p": [1.0] * rows,
        "seed": list(range(rows)),
        "ids": ids,
    }
    return {key: values[key] for key in SIGNATURES[name].inputs}


def versions(base: Path) -> dict[int, str]:
    """The entries of `base` that a server takes for versions: {number: name}.

    Files count: the server looks at names only, and a rename onto a file would fail.
    """
    names = os.listdir(base) if os.path.isdir(base) else []
    numbers = {int(name): name for name in names if VERSION_NAME.fullmatch(name)}
    return {number: name for number, name in numbers.items() if number <= MAX_VERSION}


def version_dir(path: Path) -> Path:
    """`path` itself when it holds a SavedModel, else its highest version."""
    if not os.path.isfile(os.path.join(path, "saved_model.pb")) and (taken := versions(path)):
        path = os.path.join(path, taken[max(taken)])
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return path
    raise ValueError(
        f"{path} does not contain a SavedModel: expected a version with saved_model.pb, or a "
        "directory of such versions, as keras_transformer.export writes them."
    )


def read_card(version_dir: Path) -> dict[str, Any]:
    """Reads the model card of a version; an empty dict if it has none."""
    path = os.path.join(version_dir, CARD)
    if not os.path.exists(path):
        return {}
    card = read_sealed(path)
    check_types(path, card, dict.fromkeys(PARTS, dict))
    for part, kinds in PARTS.items():
        check_types(f"{path}: {part}", card.get(part, {}), kinds)
    for name, signature in card.get("signatures", {}).items():
        check_types(f"{path}: signatures", {name: signature}, {name: dict})
        example = signature.get("example", {"inputs": {}, "outputs": {}})
        if not isinstance(example, dict) or set(example) != {"inputs", "outputs"}:
            raise ValueError(f"{path}: the example of {name} needs inputs and outputs.")
        check_types(f"{path}: {name}", example, {"inputs": dict, "outputs": dict})
    return card


def find_exported_search(directory: Path, beam_size: int) -> SearchConfig:
    """Returns the search of an export's signatures: greedy search, or that of `beam` if wider.

    It is in the card, because the graph does not name it.
    """
    directory = version_dir(os.fspath(directory))
    try:
        card = read_card(directory)
        length = card.get("max_output_length")  # earlier cards lack it
        if beam_size == 1 or "beam" not in card["signatures"]:
            return dataclasses.replace(GREEDY, max_output_length=length)
        beam = card["signatures"]["beam"]
        names = [name for name in BEAM_OPTIONS if name in beam or name != "length_norm"]  # likewise
        return SearchConfig(max_output_length=length, **{name: beam[name] for name in names})
    except (ValueError, KeyError, TypeError):
        if beam_size == 1:
            return GREEDY
        raise ValueError(
            f"{directory} has no {CARD} with the options of its signature beam: copy it from the "
            "export, or leave out --beam-size."
        ) from None
