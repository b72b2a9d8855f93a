"""The model card of an exported version: `model.json` for programs, `MODEL.md` for people."""

import datetime
import hashlib
import importlib.metadata
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

import keras_transformer
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.structure import NAME
from keras_transformer.serving.served_translator import run_signature
from keras_transformer.serving.versions import (
    BEAM_OPTIONS,
    CARD,
    PLACEHOLDERS,
    SIGNATURES,
    Functions,
    make_inputs,
)
from keras_transformer.special_ids import END
from keras_transformer.translation.translator import Translator
from keras_transformer.utils import FILES, Pairs, Path, describe_files, write_sealed

PAGE = "MODEL.md"
PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece")
DIGITS = 4  # after the point, of numbers in examples


def describe(
    translator: Translator | tf.Module,
    functions: Functions,
    config: ExportConfig,
    pairs: Pairs,
    version_dir: Path,
) -> dict[str, Any]:
    """Makes the card of a version, of plain Python objects; it names no path of this machine."""
    minor = ".".join(tf.__version__.split(".")[:2])
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "keras_transformer": keras_transformer.__version__,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "serve_with": f"TF Serving {minor} or newer: TensorFlow {tf.__version__} wrote this "
        "version, and older servers may not load it",
        "load_with": "`import tensorflow_text`, which registers the tokenizers' ops, then "
        "`tf.saved_model.load(directory)`; or `keras_transformer.load_saved_model(directory)`",
        **_describe_model(translator, config),
        "size": _describe_size(version_dir),
        "signatures": _describe_signatures(translator, functions, config, pairs),
    }


def _describe_signatures(translator, functions, config, pairs):
    """Inputs, outputs and an example of each signature."""
    sources, targets = zip(*pairs[:3], strict=True) if pairs else (PLACEHOLDERS, PLACEHOLDERS)
    described = {}
    for name in functions:
        signature = SIGNATURES[name]
        # Tables grow with the square of the length: a few words, or characters, are enough.
        texts = sources if signature.batchable else [" ".join(sources[0].split()[:3])[:36]]
        inputs = make_inputs(name, texts, targets)
        if name == "tokens":
            inputs["ids"] = translator.source_tokenizer(texts).to_tensor().numpy().tolist()
        outputs = run_signature(functions, name, inputs)
        described[name] = {
            **{
                kind: {key: {"dtype": dtype, "shape": shape} for key, (shape, dtype) in of.items()}
                for kind, of in (("inputs", signature.inputs), ("outputs", signature.outputs))
            },
            "batchable": signature.batchable,
            "example": {"inputs": inputs, "outputs": _rounded(outputs)},
        }
    if "beam" in functions:
        described["beam"] |= {name: getattr(config, name) for name in BEAM_OPTIONS}
    return described


def write_card(version_dir: Path, card: dict[str, Any]) -> None:
    """Writes `MODEL.md` and `model.json`, with the checksums of all files present."""
    with open(os.path.join(version_dir, PAGE), "w", encoding="utf-8") as file:
        file.write(_page(card))
    names = [
        os.path.relpath(os.path.join(place, name), version_dir).replace(os.sep, "/")
        for place, _, found in os.walk(version_dir)
        for name in found
        if (place, name) != (os.fspath(version_dir), CARD)
    ]
    sums = describe_files(version_dir, names)
    write_sealed(os.path.join(version_dir, CARD), card | {FILES: sums})


def _describe_size(version_dir):
    weights = sum(
        entry.stat().st_size for entry in os.scandir(os.path.join(version_dir, "variables"))
    )
    graph = os.path.getsize(os.path.join(version_dir, NAME))
    return {
        "megabytes_of_weights": round(weights / 1e6, 2),
        "megabytes_of_graph": round(graph / 1e6, 2),
    }


def _rounded(value):
    """Nested lists with fewer digits, which are easier to read; `check` tolerates that."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _describe_model(translator, config):
    """What only a `Translator` has: architecture, vocabularies, and the card of its run."""
    if not isinstance(translator, Translator):
        return {}
    model = translator.model
    architecture = model.get_config()
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
    if not translator.source_end:  # else it is the last token of a source
        vocabulary["end"] = target.pieces(tf.constant([END])).numpy()[0].decode()
    return {
        "architecture": architecture,
        "parameters": model.count_params(),
        "precision": {"computation": config.computation, "weights": config.precision},
        "prefix_token": config.prefix_token,
        "max_output_length": config.max_output_length,
        "vocabulary": vocabulary,
        **translator.card,
    }


def _describe_vocabulary(tokenizer):
    model = getattr(tokenizer, "model", None)
    sums = {"sha256": hashlib.sha256(model).hexdigest()} if isinstance(model, bytes) else {}
    return {"ids": tokenizer.vocabulary_size} | sums


def _page(card):
    """The card as Markdown: short facts in tables, the examples as requests to a server."""
    lines = ["# Model card", ""]
    for title, value in card.items():
        if title == "signatures":
            continue
        title = title.replace("_", " ").capitalize()
        if not isinstance(value, dict):
            lines += [f"{title}: {_cell(value)}", ""]
        elif value:
            lines += [f"## {title}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_cell(item)} |" for key, item in value.items()] + [""]
    lines += ["## Signatures", ""]
    if longest := card.get("architecture", {}).get("max_length"):
        longest -= 1 + (card.get("prefix_token") is not None)  # END and the prefix count
        end = "END is added" if card["architecture"].get("source_end", True) else "without END"
        lines += [f"Sources are silently truncated to {longest} tokens; {end}.", ""]
    for name, signature in card["signatures"].items():
        lines += _section(name, signature)
    return "\n".join(lines)


def _section(name, signature):
    """The page's section on a signature, with the first row of its example."""
    limit = "up to 1024 texts in a request, with export/config/batching_parameters.txt"
    example = {key: signature["example"][key] for key in ("inputs", "outputs")}
    lines = [f"- {kind}: {_tensors(signature[kind])}" for kind in example]
    lines.append(f"- server-side batching: {limit if signature['batchable'] else 'not supported'}")
    lines += [f"- {key}: {signature[key]}" for key in BEAM_OPTIONS if key in signature]
    inputs, outputs = ({key: rows[:1] for key, rows in part.items()} for part in example.values())
    if "attention" in outputs:
        shape = list(np.shape(outputs.pop("attention")))
        lines.append(f"- `attention` of this example has the shape {shape}; it is left out here")
    request = {"signature_name": name, "inputs": inputs}
    blocks = [json.dumps(x, ensure_ascii=False) for x in (request, {"outputs": outputs})]
    return [f"### {name}", "", *lines, "", "```json", *blocks, "```", ""]


def _cell(value):
    """A value in words: no dict, list, None or float as Python writes them."""
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
