"""Corpora of any size: how fast one is prepared, and what reading one costs.

    python -m benchmarks.corpora open CORPUS
    python -m benchmarks.corpora before SOURCE TARGET MODEL

are the processes that read: a prepared corpus; and text as before there were any, with the package
of another checkout (commit 11ad664 is the last one) by PYTHONPATH.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

LENGTH = 25  # tokens of a side, about
VOCABULARY = 8000
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLUMNS = ["seconds to first batch", "RssAnon above TensorFlow's, MB", "ms a batch", "ms a step"]
BATCHES = 300  # that are timed


def measure(pairs, text_pairs, rounds, before=None, steps=12):
    """Prints two tables: of preparing, and of reading.

    Args:
        pairs: Number of pairs of the corpus that is read; its ids are drawn, not tokenized.
        text_pairs: Number of pairs of the text that is tokenized.
        rounds: Of tokenizing, taken in turns.
        before: Directory of an older checkout to read the text with, or None.
        steps: Updates of the preset tiny that are timed; 0 for none.

    Returns:
        Dict of what was found.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = {"lines a second": {}}
        print("| lines | type | processes | sentencepiece, a second | prepare | ratio |")
        print("|---|---|---|---|---|---|")
        for kind in ("unigram", "bpe"):
            text, models = write_text(folder, text_pairs, kind)
            rates = found["lines a second"][kind] = _rates(folder, text, models, text_pairs, rounds)
            for count, (theirs, ours) in rates.items():
                line = f"| {2 * text_pairs:,} | {kind} | {count} | {theirs:,.0f} | {ours:,.0f} "
                print(f"{line}| {ours / theirs:.2f} |", flush=True)
        write_ids(os.path.join(folder, "large"), pairs, models)
        read = {f"prepared, {pairs:,}": _ask("open", os.path.join(folder, "large"), str(steps))}
        if before:
            options = [*text, os.path.join(folder, "small", "source.spm")]
            read[f"text before, {text_pairs:,}"] = _ask("before", *options, path=before)
    print(f"\n| pairs | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for name, row in read.items():
        print(f"| {name} | {' | '.join(str(row.get(title, '')) for title in COLUMNS)} |")
    return found | {"reading": read}


def write_text(folder, pairs, kind):
    """Text of words with the frequencies of a language; a vocabulary of it, in a small corpus."""
    import pathlib
    import shutil

    from keras_transformer.data.prepared_corpus import prepare_corpus
    from keras_transformer.presets import PrepareConfig
    from keras_transformer.tokenizers import saved
    from tests.support.made_up_text import write_text

    text = [
        path.replace("part-*", "part-00")
        for path in write_text(pathlib.Path(folder), pairs, words=30_000, length=LENGTH // 2)
    ]
    small = os.path.join(folder, "small")
    shutil.rmtree(small, ignore_errors=True)  # of the type before
    options = dict(vocabulary_size=VOCABULARY, vocabulary_sample=20_000, model_type=kind)
    prepare_corpus(PrepareConfig(*text, **options), small)
    return text, saved.read(small)


def write_ids(path, pairs, models):
    """A corpus of ids at random, written as `prepare` writes one."""
    from keras_transformer.data.prepared_corpus import CorpusWriter

    options = dict(vocabulary_size=VOCABULARY, model_type="bpe", lowercase=False, nfkc=True)
    prints = {"train": {"pairs": pairs, "sha256": ""}, "valid": {"pairs": 0, "sha256": ""}}
    os.makedirs(path)
    writer, shard = CorpusWriter(path, options, prints), 1 << 18
    writer.add_texts(models, [])
    random = np.random.default_rng(1)
    for start in range(0, pairs, shard):
        rows = min(shard, pairs - start)
        # A sentence and its translation are of similar length.
        source = np.clip(random.lognormal(np.log(LENGTH * 0.9), 0.45, rows), 1, 250).astype(int)
        target = np.clip(source * random.normal(1, 0.15, rows), 1, 250).astype(int)
        sides = [
            (random.integers(300, VOCABULARY, n.sum(), np.uint16), n) for n in (source, target)
        ]
        writer.add_shard([sides])
    writer.finish()


def _rates(folder, text, models, pairs, rounds):
    """Lines a second of sentencepiece's batch encoding and of `prepare`, by number of threads."""
    import shutil

    import sentencepiece

    from keras_transformer.data.prepared_corpus import prepare_corpus
    from keras_transformer.data.text_files import read_lines
    from keras_transformer.presets import PrepareConfig

    sides = [read_lines(path) for path in text]
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    config = PrepareConfig(*text, vocabularies=os.path.join(folder, "small"))

    def theirs(count):
        for processor, lines in zip(processors, sides, strict=True):
            processor.encode(lines, num_threads=count)

    def ours(count):
        prepare_corpus(config, os.path.join(folder, "prepared"), count)
        shutil.rmtree(os.path.join(folder, "prepared"))

    rates = {}
    for count in sorted({1, os.cpu_count() or 1}):
        seconds = [[], []]
        for _ in range(rounds):
            for function, times in zip((theirs, ours), seconds, strict=True):
                started = time.perf_counter()
                function(count)
                times.append(time.perf_counter() - started)
        rates[count] = [2 * pairs / statistics.median(times) for times in seconds]
    return rates


def _ask(*arguments, path=ROOT):
    """What a process of its own finds."""
    environment = os.environ | {"PYTHONPATH": os.path.abspath(path)}
    command = [sys.executable, os.path.abspath(__file__), *arguments]
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def anonymous_memory():
    """Anonymous memory of this process, MB."""
    with open("/proc/self/status", encoding="utf-8") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1000


class _Peak:
    """The most anonymous memory that this process has, looked at a hundred times a second."""

    def __init__(self):
        self.most, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self):
        while not self._ended.wait(0.01):
            self.most = max(self.most, anonymous_memory())

    def end(self):
        self._ended.set()
        self._thread.join()
        return self.most


def read_prepared(path, steps):
    """Opens a corpus, takes batches, and trains the preset tiny on some."""
    import keras
    import tensorflow as tf

    import keras_transformer as kt
    from benchmarks.timed_fit import TimedFit
    from keras_transformer.data import dataset as _  # noqa: F401, the imports are not timed

    tf.constant(1)
    config = kt.PRESETS["tiny"]
    alone, started = anonymous_memory(), time.perf_counter()
    peak = _Peak()
    dataset = kt.make_dataset(corpus=path, tokens_per_batch=config.tokens_per_batch, repeat=True)
    batches = iter(dataset)
    next(batches)
    found = {"seconds to first batch": round(time.perf_counter() - started, 2)}
    started = time.perf_counter()
    for _batch in range(BATCHES):
        next(batches)
    found["ms a batch"] = round(1000 * (time.perf_counter() - started) / BATCHES, 2)
    found["RssAnon above TensorFlow's, MB"] = round(peak.end() - alone)
    if steps == "0":
        return found
    model = kt.Transformer(VOCABULARY, VOCABULARY, **vars(config.model))
    model.parallel_microbatches = kt.configure_threads(max_parallel=8)
    model.compile(keras.optimizers.Adam(1e-4), kt.SmoothedCrossEntropy(0.1), jit_compile=False)
    fit = TimedFit(model, dataset, steps_per_epoch=int(steps))
    for _round in range(2):
        fit()
        found["ms a step"] = round(1000 * fit.seconds / int(steps), 1)
    return found


def read_text(source, target, model):
    """Reads and tokenizes text as trainings did, and takes batches."""
    import tensorflow as tf

    import keras_transformer as kt

    tokenizer = kt.SubwordTokenizer.load(model)
    tf.constant(1)
    alone, started = anonymous_memory(), time.perf_counter()
    pairs = kt.read_pairs(source, target)
    peak = _Peak()
    dataset = kt.make_dataset(pairs, tokenizer, tokenizer, 8192, first_step=0)
    batches = iter(dataset)
    next(batches)
    found = {"seconds to first batch": round(time.perf_counter() - started, 2)}
    started = time.perf_counter()
    for _ in range(BATCHES):
        next(batches)
    found["ms a batch"] = round(1000 * (time.perf_counter() - started) / BATCHES, 2)
    return found | {"RssAnon above TensorFlow's, MB": round(peak.end() - alone)}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    task, *arguments = sys.argv[1:]
    print(json.dumps({"open": read_prepared, "before": read_text}[task](*arguments)))
