"""Costs and gains of storing weights in fewer bits, measured before a version is published."""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.server_process import ServerProcess
from keras_transformer.serving.model_card import size_of_weights
from keras_transformer.serving.served_translator import ServedTranslator
from keras_transformer.serving.signatures import Functions
from keras_transformer.translation.corpus_scores import corpus_scores
from keras_transformer.translation.sentence_batches import translate_sorted
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Pairs, Path

MOST_PAIRS = 500
ROUNDS = 3


def compare_precision(
    translator: Translator,
    version_dir: Path,
    pairs: Pairs,
    save: Callable[[tf.Module, Functions, str], None],
    bleu_tokenize: str = "13a",
) -> dict[str, Any]:
    """Compares a version with one of full precision, both as a server runs them.

    Args:
        translator: `Translator`, the model of both.
        version_dir: path of the directory that holds `saved_model.pb`.
        pairs: pairs of strings, source and translation; the first 500 count.
        save: function that writes a module and its functions into a directory.
        bleu_tokenize: sacreBLEU's tokenizer.

    Returns:
        Dict of `sentences`, a count, `bleu_tokenize`, and of `bleu` (percent),
        `megabytes_of_weights` and `lines_per_second` (median of three, in turns), each a dict of
        `float32` and `this`.
    """
    sources, targets = zip(*pairs[:MOST_PAIRS], strict=True)
    report: dict[str, Any] = {
        "sentences": len(sources),
        "bleu_tokenize": bleu_tokenize,
        "bleu": {},
        "megabytes_of_weights": {},
        "lines_per_second": {},
    }
    with tempfile.TemporaryDirectory() as twin:
        served = ServedTranslator(translator, ExportConfig(signatures=()))
        save(served, served.functions, twin)
        with ServerProcess(twin) as full, ServerProcess(version_dir) as small:
            systems = {"float32": (full, twin), "this": (small, version_dir)}
            seconds: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(1 + ROUNDS):  # the first one warms up
                for name, (server, _) in systems.items():

                    def translate(rows, server=server):
                        return server.predict(rows)["text"]

                    started = time.perf_counter()
                    outputs = translate_sorted(translate, sources)
                    seconds[name].append(time.perf_counter() - started)
                    bleu = corpus_scores(outputs, targets, bleu_tokenize)["bleu"]
                    report["bleu"][name] = round(bleu, 2)
            for name, (_, directory) in systems.items():
                median = statistics.median(seconds[name][1:])
                report["lines_per_second"][name] = round(len(sources) / median, 1)
                report["megabytes_of_weights"][name] = round(size_of_weights(directory) / 1e6, 2)
    return report
