"""The model card of an exported version: `model.json` for programs, `MODEL.md` for people."""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import keras_transformer
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.graph import NAME, read_meta_graphs
from keras_transformer.serving.acceptance.server_process import ServerProcess
from keras_transformer.serving.served_translator import ServedTranslator, run_signature
from keras_transformer.serving.signatures import SIGNATURES, Functions, make_inputs
from keras_transformer.serving.versions import CARD, PLACEHOLDERS
from keras_transformer.special_ids import END, PAD
from keras_transformer.translation.corpus_scores import corpus_scores
from keras_transformer.translation.sentence_batches import as_bytes, in_batches
from keras_transformer.translation.translator import Translator
from keras_transformer.utils import FILES, Pairs, Path, describe_files, write_sealed

PAGE = "MODEL.md"
PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece")
PAYS = {  # when to choose a computation
    "float32": "for every processor; on one with bfloat16 units, bfloat16 is faster",
    "bfloat16": "for processors with bfloat16 units (AVX512-BF16, AMX); elsewhere slow and inexact",
}
BEAM_OPTIONS = ("beam_size", "length_penalty", "length_norm")  # that the signature beam fixes
DIGITS = 4  # after the point, of numbers in examples
MAX_PAIRS, ROUNDS = 500, 3  # of the comparison


def describe(
    translator: Translator | tf.Module,
    functions: Functions,
    config: ExportConfig,
    pairs: Pairs,
    version_dir: Path,
) -> dict[str, Any]:
    """Makes the card of a version, of plain Python objects; it names no path of this machine.

    Args:
        translator: What is exported.
        functions: {name of a signature: tf.function}.
        config: `ExportConfig`.
        pairs: Pairs of strings for the examples.
        version_dir: Path of the directory that holds `saved_model.pb`.
    """
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
        # Tables grow with the square of the length: a few words of one text are enough.
        texts = sources if signature.batchable else [_first_words(sources[0])]
        inputs = make_inputs(name, texts, targets)
        if name == "tokens":
            inputs["ids"] = translator.source_tokenizer(texts).to_tensor().numpy().tolist()
        if name == "explore":
            inputs |= {"prefix": [[PAD]], "k": [3]}
        outputs = run_signature(functions, name, inputs)
        described[name] = {
            "inputs": _describe_tensors(signature.inputs),
            "outputs": _describe_tensors(signature.outputs),
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


def compare_precision(
    translator: Translator,
    config: ExportConfig,
    version_dir: Path,
    pairs: Pairs,
    save: Callable[[tf.Module, Functions, str], None],
    bleu_tokenize: str = "13a",
) -> dict[str, Any]:
    """Compares a version with one of full precision, both run as in a server.

    Args:
        translator: `Translator`, the model of both.
        config: `ExportConfig` of the version.
        version_dir: path of the directory that holds `saved_model.pb`.
        pairs: pairs of strings, source and translation; the first 500 count.
        save: function that writes a module and its functions into a directory.
        bleu_tokenize: sacreBLEU's tokenizer.

    Returns:
        Dict of `sentences`, a count, `bleu_tokenize`, and of `bleu` (percent),
        `megabytes_of_weights` and `lines_per_second` (median of three, in turns), each a dict of
        `float32` and `this`.
    """
    sources, targets = zip(*pairs[:MAX_PAIRS], strict=True)
    rows = as_bytes(sources)
    report: dict[str, Any] = {
        "sentences": len(sources),
        "bleu_tokenize": bleu_tokenize,
        "bleu": {},
        "megabytes_of_weights": {},
        "lines_per_second": {},
    }
    with tempfile.TemporaryDirectory() as twin:
        config = dataclasses.replace(
            config, signatures=(), precision="float32", computation="float32"
        )
        served = ServedTranslator(translator, config)
        save(served, served.functions, twin)
        with ServerProcess(twin) as full, ServerProcess(version_dir) as small:
            systems = {"float32": (full, twin), "this": (small, version_dir)}
            seconds: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(1 + ROUNDS):  # the first one warms up
                for name, (server, _) in systems.items():

                    def translate(chosen, server=server):
                        return server.predict([rows[i] for i in chosen])["text"]

                    started = time.perf_counter()
                    outputs = in_batches(translate, list(map(len, rows)), 256)
                    seconds[name].append(time.perf_counter() - started)
                    bleu = corpus_scores(outputs, targets, bleu_tokenize)["bleu"]
                    report["bleu"][name] = round(bleu, 2)
            for name, (_, directory) in systems.items():
                median = statistics.median(seconds[name][1:])
                report["lines_per_second"][name] = round(len(sources) / median, 1)
                report["megabytes_of_weights"][name] = round(_weight_bytes(directory) / 1e6, 2)
    return report


def _describe_size(version_dir):
    """Megabytes of the weights and of the graph, and the size of the graph."""
    (meta_graph,) = read_meta_graphs(version_dir)
    functions = meta_graph.graph_def.library.function
    graph_bytes = os.path.getsize(os.path.join(version_dir, NAME))
    return {
        "megabytes_of_weights": round(_weight_bytes(version_dir) / 1e6, 2),
        "megabytes_of_graph": round(graph_bytes / 1e6, 2),
        "nodes": sum(len(one.node_def) for one in functions) + len(meta_graph.graph_def.node),
        "functions": len(functions),
    }


def _weight_bytes(version_dir):
    directory = os.path.join(version_dir, "variables")
    return sum(entry.stat().st_size for entry in os.scandir(directory))


def _first_words(text):
    """The first three words of a text; without spaces, the first characters."""
    return " ".join(text.split()[:3])[:36]


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
    sides = {"source": translator.source_tokenizer, "target": translator.target_tokenizer}
    vocabulary: dict[str, Any] = {
        side: _describe_vocabulary(side, tokenizer) for side, tokenizer in sides.items()
    }
    if not translator.source_end:  # else it is the last token of a source
        vocabulary["end"] = sides["target"].pieces(tf.constant([END])).numpy()[0].decode()
    return {
        "architecture": architecture,
        "parameters": model.count_params(),
        "precision": {"computation": config.computation, "weights": config.precision},
        "computation": f"{config.computation}, {PAYS[config.computation]}",
        "prefix_token": config.prefix_token,
        "max_output_length": config.max_output_length,
        "vocabulary": vocabulary,
        **translator.card,
    }


def _describe_vocabulary(side, tokenizer):
    """Size, the hash of the tokenizer's model, and what detokenizing loses in translations."""
    described = {"ids": tokenizer.vocabulary_size}
    model = getattr(tokenizer, "model", None)
    if isinstance(model, bytes):
        described["sha256"] = hashlib.sha256(model).hexdigest()
    losses = getattr(tokenizer, "detokenizing_loses", None)
    if losses and side == "target":  # sources are not detokenized
        described["detokenizing_loses"] = losses
    return described


def _describe_tensors(tensors):
    return {name: {"dtype": dtype, "shape": shape} for name, (shape, dtype) in tensors.items()}


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
        longest -= card.get("prefix_token") is not None  # it counts
        truncated = (
            f"Sources of more than {longest} tokens, END included, are silently truncated to "
            f"{longest - 1} tokens and END."
        )
        if not card["architecture"].get("source_end", True):
            truncated = f"Sources are silently truncated to {longest - 1} tokens, without END."
        lines += [truncated, ""]
    for name, signature in card["signatures"].items():
        lines += _section(name, signature)
    return "\n".join(lines)


def _section(name, signature):
    """The page's section on a signature, with the first row of its example."""
    limit = "up to 1024 texts in a request, with export/config/batching_parameters.txt"
    example = signature["example"]
    inputs = {key: rows[:1] for key, rows in example["inputs"].items()}
    outputs, shapes = {}, []
    for key, rows in example["outputs"].items():
        rank = len(signature["outputs"][key]["shape"])
        outputs[key] = _first_row(rows, max(rank - 1, 1))
        if rank > 2:
            shape = list(np.shape(rows))
            shapes.append(
                f"- `{key}` in this example has the shape {shape}; only its first row is shown"
            )
    lines = [f"- {kind}: {_tensors(signature[kind])}" for kind in ("inputs", "outputs")]
    lines.append(f"- server-side batching: {limit if signature['batchable'] else 'not supported'}")
    lines += [f"- {key}: {signature[key]}" for key in BEAM_OPTIONS if key in signature]
    request = {"signature_name": name, "inputs": inputs}
    blocks = [json.dumps(x, ensure_ascii=False) for x in (request, {"outputs": outputs})]
    return [f"### {name}", "", *lines, *shapes, "", "```json", *blocks, "```", ""]


def _first_row(table, depth):
    """The first row of each of the outer `depth` axes, in lists as before."""
    return [_first_row(row, depth - 1) for row in table[:1]] if depth else table


def _title(name):
    return name.replace("_", " ").capitalize()


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
