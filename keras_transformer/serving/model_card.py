"""The model card of an exported version: `model.json` for programs, `MODEL.md` for people."""

import datetime
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import keras_transformer
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.trial import Answer
from keras_transformer.serving.signatures import SIGNATURES, Functions, make_inputs
from keras_transformer.serving.versions import CARD
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Pairs, Path

PAGE = "MODEL.md"
PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece")
PAYS = {  # where a computation is the one to choose
    "float32": "for every processor; on one with bfloat16 units, bfloat16 is faster",
    "bfloat16": "for processors with bfloat16 units (AVX512-BF16, AMX), elsewhere slower",
}
EXAMPLES = ("a", "b c", "")  # where nothing better is known


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
    translator: Translator | tf.Module, functions: Functions, config: ExportConfig, pairs: Pairs
) -> dict[str, Any]:
    """Puts together what there is to say about a version.

    Args:
        translator: What is exported. Of a `Translator` with an attribute `card`, a dict, what is
            in it becomes part of the card.
        functions: {name of a signature: tf.function}.
        config: `ExportConfig`.
        pairs: Pairs of strings for the examples.

    Returns:
        Dict that JSON can hold. Nothing in it names a place on this machine.
    """
    sources, targets = zip(*pairs[:3], strict=True) if pairs else (EXAMPLES, EXAMPLES)
    card = {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "serve_with": "TF Serving 2.20 or newer",
        **_describe_model(translator, config),
        **getattr(translator, "card", {}),
        "signatures": {},
    }
    for name in functions:
        inputs = make_inputs(name, sources, targets)
        if name == "tokens":
            inputs["ids"] = translator.source_tokenizer(list(sources)).to_tensor().numpy().tolist()
        example = answer(functions, name, inputs)
        signature = SIGNATURES[name]
        card["signatures"][name] = {
            "inputs": _describe_tensors(signature.inputs),
            "outputs": _describe_tensors(signature.outputs),
            "batchable": signature.batchable,
            "example": {"inputs": example.inputs, "outputs": example.outputs},
        }
    if "beam" in functions:
        options = {"beam_size": config.beam_size, "length_penalty": config.length_penalty}
        card["signatures"]["beam"] |= options
    return card


def write_card(version_dir: Path, card: dict[str, Any]) -> None:
    """Writes `model.json` and `MODEL.md` into a version directory."""
    with open(os.path.join(version_dir, CARD), "w", encoding="utf-8") as file:
        json.dump(card, file, ensure_ascii=False, indent=1)
    with open(os.path.join(version_dir, PAGE), "w", encoding="utf-8") as file:
        file.write(_page(card))


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
            for side, tokenizer in sides.items()
        },
    }


def _fingerprint(tokenizer):
    """The hash of a tokenizer's model, where it has one."""
    model = getattr(tokenizer, "model", None)
    return {"sha256": hashlib.sha256(model).hexdigest()} if isinstance(model, bytes) else {}


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
            lines += [f"{_title(title)}: {value}", ""]
            continue
        lines += [f"## {_title(title)}", "", "| | |", "|---|---|"]
        lines += [f"| {key} | {_cell(item)} |" for key, item in value.items()] + [""]
    lines += ["## Signatures", ""]
    for name, signature in card["signatures"].items():
        requests = "may be" if signature["batchable"] else "must not be"
        lines += [
            f"### {name}",
            "",
            *(f"- {kind}: {_tensors(signature[kind])}" for kind in ("inputs", "outputs")),
            f"- requests {requests} joined by server-side batching",
            *(
                f"- {key}: {signature[key]}"
                for key in ("beam_size", "length_penalty")
                if key in signature
            ),
            "",
            "```json",
            json.dumps(
                {"signature_name": name, "inputs": signature["example"]["inputs"]},
                ensure_ascii=False,
            ),
            json.dumps({"outputs": signature["example"]["outputs"]}, ensure_ascii=False),
            "```",
            "",
        ]
    return "\n".join(lines)


def _title(name):
    return name.replace("_", " ").capitalize()


def _cell(value):
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    return str(value).replace("|", "\\|")


def _tensors(tensors):
    described = []
    for name, tensor in tensors.items():
        sizes = ", ".join("?" if size is None else str(size) for size in tensor["shape"])
        described.append(f"`{name}` {tensor['dtype']} [{sizes}]")
    return ", ".join(described)
