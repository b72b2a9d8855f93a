"""The model card of an exported version: `model.json` for programs, `MODEL.md` for people."""

import datetime
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer
from keras_transformer.inspection import files
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.trial import Answer
from keras_transformer.serving.signatures import SIGNATURES, Functions, make_inputs
from keras_transformer.serving.versions import CARD
from keras_transformer.special_ids import PAD
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Pairs, Path

PAGE = "MODEL.md"
PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece")
PAYS = {  # where a computation is the one to choose
    "float32": "for every processor; on one with bfloat16 units, bfloat16 is faster",
    "bfloat16": "for processors with bfloat16 units (AVX512-BF16, AMX), elsewhere slower",
}
EXAMPLES = ("a", "b c", "")  # where nothing better is known
DIGITS = 4  # after the point, of numbers in examples


def answer(functions: Functions, name: str, inputs: Mapping[str, Any]) -> Answer:
    """Asks a signature in memory.

    Args:
        functions: {name of a signature: tf.function}.
        name: Of the signature.
        inputs: {name of an input: nested lists}.

    Returns:
        `Answer`: the inputs as they came; the outputs as lists, strings and numbers.
    """
    specs = SIGNATURES[name].inputs
    tensors = [tf.constant(inputs[key], spec.dtype) for key, spec in specs.items()]
    outputs = {key: _plain(value.numpy()) for key, value in functions[name](*tensors).items()}
    return Answer(name, {key: inputs[key] for key in specs}, outputs)


def describe(
    translator: Translator | tf.Module,
    functions: Functions,
    config: ExportConfig,
    pairs: Pairs,
    version_dir: Path,
) -> dict[str, Any]:
    """Puts together what there is to say about a version.

    Args:
        translator: What is exported. Of a `Translator` with an attribute `card`, a dict, what is
            in it becomes part of the card.
        functions: {name of a signature: tf.function}.
        config: `ExportConfig`.
        pairs: Pairs of strings for the examples.
        version_dir: Path of the directory that holds `saved_model.pb`.

    Returns:
        Dict that JSON can hold. Nothing in it names a place on this machine.
    """
    sources, targets = zip(*pairs[:3], strict=True) if pairs else (EXAMPLES, EXAMPLES)
    minor = ".".join(tf.__version__.split(".")[:2])
    card = {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "serve_with": f"TF Serving {minor} or newer: TensorFlow {tf.__version__} wrote this "
        "version, and a server of an older one may refuse it",
        "load_with": "`import tensorflow_text`, which registers the tokenizers' ops, then "
        "`tf.saved_model.load(directory)`; or `keras_transformer.load_saved_model(directory)`",
        **_describe_model(translator, config),
        **getattr(translator, "card", {}),
        "size": _describe_size(version_dir),
        "signatures": {},
    }
    for name in functions:
        signature = SIGNATURES[name]
        # Tables grow with the square of what is asked: of one, a few words tell as much.
        asked = sources if signature.batchable else [_beginning(sources[0])]
        inputs = make_inputs(name, asked, targets)
        if name == "tokens":
            inputs["ids"] = translator.source_tokenizer(asked).to_tensor().numpy().tolist()
        if name == "explore":
            inputs |= {"prefix": [[PAD]], "k": [3]}
        example = answer(functions, name, inputs)
        card["signatures"][name] = {
            "inputs": _describe_tensors(signature.inputs),
            "outputs": _describe_tensors(signature.outputs),
            "batchable": signature.batchable,
            "example": {"inputs": example.inputs, "outputs": _rounded(example.outputs)},
        }
    if "beam" in functions:
        options = {"beam_size": config.beam_size, "length_penalty": config.length_penalty}
        card["signatures"]["beam"] |= options
    return card


def write_card(version_dir: Path, card: dict[str, Any]) -> None:
    """Writes `MODEL.md` and `model.json`, with the checksums of all files that are there by then.

    Args:
        version_dir: Path of the directory that holds `saved_model.pb`.
        card: As `describe` returns it.
    """
    with open(os.path.join(version_dir, PAGE), "w", encoding="utf-8") as file:
        file.write(_page(card))
    names = [
        os.path.relpath(os.path.join(place, name), version_dir).replace(os.sep, "/")
        for place, _, found in os.walk(version_dir)
        for name in found
        if (place, name) != (os.fspath(version_dir), CARD)
    ]
    sums = files.describe_files(version_dir, names)
    files.write_sealed(os.path.join(version_dir, CARD), card | {files.FILES: sums})


def _describe_size(version_dir):
    """Megabytes of the weights and of the graph that a server loads, and what is in the latter."""
    path = os.path.join(version_dir, "saved_model.pb")
    with open(path, "rb") as file:
        (meta_graph,) = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    functions = meta_graph.graph_def.library.function
    return {
        "megabytes_of_weights": round(size_of_weights(version_dir) / 1e6, 2),
        "megabytes_of_graph": round(os.path.getsize(path) / 1e6, 2),
        "nodes": sum(len(one.node_def) for one in functions) + len(meta_graph.graph_def.node),
        "functions": len(functions),
    }


def size_of_weights(version_dir: Path) -> int:
    """Bytes of the weights of a version."""
    directory = os.path.join(version_dir, "variables")
    return sum(entry.stat().st_size for entry in os.scandir(directory))


def _beginning(text, words=3, characters=12):
    """A few words of a text, of one without spaces a few characters."""
    return " ".join(text.split()[:words])[: words * characters]


def _rounded(value):
    """Nested lists with fewer digits: a long one is easier to read, and `check` allows for more."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _describe_model(translator, config):
    """Architecture and vocabularies, of a translator that has them."""
    model = getattr(translator, "model", None)
    if model is None:
        return {}
    architecture = model.get_config()
    for name in ("name", "trainable", "dtype"):
        architecture.pop(name, None)
    sides = {"source": translator.source_tokenizer, "target": translator.target_tokenizer}
    return {
        "architecture": architecture,
        "parameters": model.count_params(),
        "precision": {"computation": config.computation, "weights": config.precision},
        "computation": f"{config.computation}, {PAYS[config.computation]}",
        "vocabulary": {
            side: {"ids": tokenizer.vocabulary_size, **_fingerprint(tokenizer)}
            | _losses(side, tokenizer)
            for side, tokenizer in sides.items()
        },
    }


def _fingerprint(tokenizer):
    """The hash of a tokenizer's model, where it has one."""
    model = getattr(tokenizer, "model", None)
    return {"sha256": hashlib.sha256(model).hexdigest()} if isinstance(model, bytes) else {}


def _losses(side, tokenizer):
    """What the translations lack that such a tokenizer writes; of sources it is of no matter."""
    losses = getattr(tokenizer, "detokenizing_loses", None) if side == "target" else None
    return {"detokenizing_loses": losses} if losses else {}


def _describe_tensors(specs):
    return {
        name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
        for name, spec in specs.items()
    }


def _plain(value):
    """Arrays and byte strings as lists and strings."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _page(card):
    """The card as Markdown: short facts in tables, the examples as requests to a server."""
    lines = ["# Model card", ""]
    for title, value in card.items():
        if title == "signatures":
            continue
        if not isinstance(value, dict):
            lines += [f"{_title(title)}: {_cell(value)}", ""]
        elif value:
            lines += [f"## {_title(title)}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_cell(item)} |" for key, item in value.items()] + [""]
    lines += ["## Signatures", ""]
    if longest := card.get("architecture", {}).get("max_length"):
        lines += [
            f"Of a source of more than {longest} tokens, END included, the first {longest - 1} are "
            "read; what follows them has no part in the answer.",
            "",
        ]
    for name, signature in card["signatures"].items():
        lines += _section(name, signature)
    return "\n".join(lines)


def _section(name, signature):
    """What the page says of a signature, with the first row of its example."""
    requests = "may be" if signature["batchable"] else "must not be"
    example = signature["example"]
    inputs = {key: rows[:1] for key, rows in example["inputs"].items()}
    outputs, shapes = {}, []
    for key, rows in example["outputs"].items():
        rank = len(signature["outputs"][key]["shape"])
        outputs[key] = _first_row(rows, max(rank - 1, 1))
        if rank > 2:
            shape = list(np.shape(rows))
            shapes.append(f"- `{key}` is of shape {shape} there; its first row is shown")
    lines = [f"- {kind}: {_tensors(signature[kind])}" for kind in ("inputs", "outputs")]
    lines.append(f"- requests {requests} joined by server-side batching")
    fixed = ("beam_size", "length_penalty")
    lines += [f"- {key}: {signature[key]}" for key in fixed if key in signature]
    request = {"signature_name": name, "inputs": inputs}
    blocks = [json.dumps(x, ensure_ascii=False) for x in (request, {"outputs": outputs})]
    return [f"### {name}", "", *lines, *shapes, "", "```json", *blocks, "```", ""]


def _first_row(table, depth):
    """The first of the first of the first, so many times, in as many lists as it was in."""
    return [_first_row(row, depth - 1) for row in table[:1]] if depth else table


def _title(name):
    return name.replace("_", " ").capitalize()


def _cell(value):
    """A fact in words: no dict, list, None or float as Python writes them."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _tensors(tensors):
    described = []
    for name, tensor in tensors.items():
        sizes = ", ".join("?" if size is None else str(size) for size in tensor["shape"])
        described.append(f"`{name}` {tensor['dtype']} [{sizes}]")
    return ", ".join(described)
