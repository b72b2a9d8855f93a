"""Exported versions as their clients know them: directories, signatures and model cards.

The card, `model.json`, describes the model and has an example of each signature. This module needs
no TensorFlow.

No signature refuses a long source: with more than the model's `max_length` tokens, END included,
all after the first `max_length` - 1 are ignored.

Shapes: B batch, S source length, T target length, N hypotheses for each text.
"""

import datetime
import hashlib
import importlib.metadata
import os
import pathlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import keras_transformer
from keras_transformer.presets import BEAM_OPTIONS, CONTROLS, ExportConfig, SearchConfig
from keras_transformer.utils import (
    FILES,
    Pairs,
    Path,
    check_types,
    describe_files,
    read_sealed,
    write_sealed,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.translation.translator import Translator

PARTS: dict[str, dict[str, type]] = {  # of a card, with the types of the fields that are read
    "precision": {"computation": str},
    "recipe": {"bleu_tokenize": str},
    "languages": {"inputs": list, "codes": list},
    "vocabulary": {"source": dict, "target": dict},
    "signatures": {},
    "versions": {},
}
CARD = "model.json"
GRAPH = "saved_model.pb"
PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece")
PLACEHOLDERS = ("a", "b c", "")  # example texts of a model exported without pairs
DEFAULT = "serving_default"  # the signature of requests that name none
MAX_VERSION = 2**63 - 1  # TF Serving keeps versions as int64
# What TF Serving reads as a version: "7", and "00007" as well. int() would also take "1_000".
VERSION_NAME = re.compile(r"\s*\+?[0-9]+\s*")

# {name: (shape, dtype)}; None is an unknown size.
Tensors: TypeAlias = dict[str, tuple[list[int | None], str]]


class Signature(NamedTuple):
    """The contract of one signature.

    A server may batch requests if axis 0 of every tensor is the batch, and no other axis depends on
    the rest of the batch.
    """

    inputs: Tensors
    outputs: Tensors
    batchable: bool

    def inputs_with(self, others: Container[str]) -> Tensors:
        """Returns its inputs, and those of `LANGUAGES` that are among others."""
        return self.inputs | {key: LANGUAGES[key] for key in LANGUAGES if key in others}


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


# Further inputs of an export of several languages: a code for each row, such as "de". One that is
# unknown gives its row no translation, and the least log-probability.
LANGUAGES: Tensors = dict(source_language=_TEXT, target_language=_TEXT)


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
    card: Mapping[str, Any] | None = None,
) -> dict[str, list[Any]]:
    """A request to a signature: {name of an input: list}, texts and usual values for the others.

    Without `targets`, the texts are their own. The languages that the export's `card` lists are the
    first, the last, and an unknown one, in turn.
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
    part = {"codes": [], "inputs": []} | (card or {}).get("languages", {})
    first, last = part["codes"][:1], part["codes"][-1:]
    codes = [*first, *last, *first, "?"]
    values |= {key: [codes[row % len(codes)] for row in range(rows)] for key in part["inputs"]}
    return {key: values[key] for key in SIGNATURES[name].inputs_with(values)}


def versions(base: Path) -> dict[int, str]:
    """The entries of `base` that a server takes for versions: {number: name}.

    Files count: the server looks at names only, and a rename onto a file would fail.
    """
    names = os.listdir(base) if os.path.isdir(base) else []
    numbers = {int(name): name for name in names if VERSION_NAME.fullmatch(name)}
    return {number: name for number, name in numbers.items() if number <= MAX_VERSION}


def version_dir(path: Path) -> Path:
    """`path` itself when it holds a SavedModel, else its highest version."""
    if not os.path.isfile(os.path.join(path, GRAPH)) and (taken := versions(path)):
        path = os.path.join(path, taken[max(taken)])
    if not os.path.isfile(os.path.join(path, GRAPH)):
        raise ValueError(f"{path} does not contain a SavedModel, nor versions of one.")
    return path


def read_card(version_dir: Path) -> dict[str, Any]:
    """Reads the model card of a version; an empty dict if it has none."""
    path = os.path.join(version_dir, CARD)
    if not os.path.exists(path):
        return {}
    card = read_sealed(path)
    check_types(path, card, dict.fromkeys(PARTS, dict))
    for part, kinds in PARTS.items():
        check_types(f"{path}: {part}", card.get(part, {}), kinds)
    return card


def find_exported_search(directory: Path, beam_size: int) -> SearchConfig:
    """Returns the search of an export's signatures: greedy search, or that of `beam` if wider.

    It is in the card, because the graph does not name it.
    """
    card = read_card(version_dir(os.fspath(directory)))
    # Earlier cards lack the length.
    own = {name: card[name] for name in CONTROLS if name in card}
    if beam_size > 1:
        beam = card.get("signatures", {}).get("beam", {})
        own |= {name: beam[name] for name in BEAM_OPTIONS if name in beam}
    return SearchConfig(**own)


# --- the card of a new version ---


def describe(
    translator: "Translator | tf.Module",
    run: Callable[[str, dict[str, Any]], dict[str, Any]],
    names: Iterable[str],
    config: ExportConfig,
    pairs: Pairs,
) -> dict[str, Any]:
    """Makes the card of a version, of plain Python objects; it names no path of this machine.

    `run` maps the name of a signature, one of `names`, and its inputs to its outputs.
    """
    tensorflow = importlib.metadata.version("tensorflow")
    minor = ".".join(tensorflow.split(".")[:2])
    model = _describe_model(translator, config) if hasattr(translator, "model") else {}
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "serve_with": f"TF Serving {minor} or newer: TensorFlow {tensorflow} wrote this "
        "version, and older servers may not load it",
        "load_with": "`import tensorflow_text`, which registers the tokenizers' ops, then "
        "`tf.saved_model.load(directory)`; or `keras_transformer.load_saved_model(directory)`",
        **model,
        "signatures": _describe_signatures(translator, run, names, config, pairs, model),
    }


def _describe_signatures(translator, run, names, config, pairs, card):
    """Inputs, outputs and an example of each signature."""
    sources, targets = zip(*pairs[:3], strict=True) if pairs else (PLACEHOLDERS, PLACEHOLDERS)
    described = {}
    for name in names:
        signature = SIGNATURES[name]
        # Tables grow with the square of the length: a few words, or characters, are enough.
        texts = sources if signature.batchable else [" ".join(sources[0].split()[:3])[:36]]
        inputs = make_inputs(name, texts, targets, card)
        if name == "tokens":
            inputs["ids"] = translator.source_tokenizer(texts).to_tensor().numpy().tolist()
        outputs, all_inputs = run(name, inputs), signature.inputs_with(inputs)
        described[name] = {
            **{
                kind: {key: {"dtype": dtype, "shape": shape} for key, (shape, dtype) in of.items()}
                for kind, of in (("inputs", all_inputs), ("outputs", signature.outputs))
            },
            "batchable": signature.batchable,
            "example": {"inputs": inputs, "outputs": outputs},
        }
    if "beam" in described:
        described["beam"] |= {name: getattr(config, name) for name in BEAM_OPTIONS}
    return described


def write_card(version_dir: Path, card: dict[str, Any]) -> None:
    """Writes `model.json`, with the checksums of all files present."""
    paths = [path for path in pathlib.Path(version_dir).rglob("*") if path.is_file()]
    sums = describe_files(version_dir, [str(path.relative_to(version_dir)) for path in paths])
    write_sealed(os.path.join(version_dir, CARD), card | {FILES: sums})


def _describe_model(translator, config):
    """What only a `Translator` has: architecture, vocabularies, and the card of its run."""
    model = translator.model
    architectures = [one.get_config() for one in getattr(model, "models", [model])]
    for architecture in architectures:
        for name in ("name", "trainable", "dtype"):
            architecture.pop(name, None)
        architecture["source_end"] = translator.source_end
    target = translator.target_tokenizer
    vocabulary: dict[str, Any] = {
        "source": _describe_vocabulary(translator.source_tokenizer),
        "target": _describe_vocabulary(target),
    }
    if losses := getattr(target, "detokenizing_loses", None):
        vocabulary["target"]["detokenizing_loses"] = losses
    languages = translator.languages.fix(config.source_language, config.target_language)
    controls = {name: getattr(config, name) for name in CONTROLS}
    if config.max_output_length is None and translator.max_output_length < model.max_length:
        controls["max_output_length"] = translator.max_output_length
    return {
        "architecture": architectures[0],
        **({"ensemble": architectures} if architectures[1:] else {}),
        "parameters": model.count_params(),
        "precision": {"computation": config.computation, "weights": config.precision},
        **({"languages": languages.describe()} if languages.sides else {}),
        **controls,
        "vocabulary": vocabulary,
        **translator.card,
    }


def _describe_vocabulary(tokenizer):
    model = getattr(tokenizer, "model", None)
    sums = {"sha256": hashlib.sha256(model).hexdigest()} if isinstance(model, bytes) else {}
    return {"ids": tokenizer.vocabulary_size} | sums
