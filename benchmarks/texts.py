"""What WordPiece costs beside SentencePiece, and word vectors of 2 million lines.

    python -m benchmarks.texts FILE.gz [VOCAB.txt] [LINES]

FILE.gz: text, such as the sources of Multi30k. VOCAB.txt: a WordPiece vocabulary, such as BERT's
uncased one; by default one is learned. LINES: of generated vectors, 300 numbers each, which come
through a pipe, gigabytes of them, and are not written anywhere.
"""

import gzip
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

import numpy as np

ROUNDS, BATCH, WANTED = 9, 8192, 5000


def main(text, vocabulary=None, lines="2000000"):
    """Prints a Markdown table."""
    count = int(lines)
    megabytes, seconds = vectors(count)
    print(f"| | |\n|---|---|\n| vectors: {count:,} lines of 300, {WANTED:,} wanted |", end=" ")
    print(f"{megabytes:.0f} MB above the start, {seconds:.0f} s, most of it to generate them |")
    for name, value in tokenizing(text, vocabulary).items():
        print(f"| {name} | {value} |")


def vectors(count):
    """Megabytes that reading needs, and seconds."""
    from keras_transformer.training.word_vectors import read_vectors

    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "vectors")
        os.mkfifo(pipe)
        writer = multiprocessing.Process(target=write, args=(pipe, count))
        writer.start()
        wanted = {b"w%d" % k for k in range(0, count, max(count // WANTED, 1))}
        before, start = peak(), time.perf_counter()
        found = read_vectors(pipe, wanted, 300)
        assert len(found) == len(wanted)
        seconds = time.perf_counter() - start
        writer.join()
    return (peak() - before) / 1024, seconds


def write(path, count):
    """Generates vectors."""
    numbers = b" ".join(b"%.4f" % x for x in np.random.default_rng(1).normal(0, 0.3, 300))
    with open(path, "wb", 1 << 20) as file:
        file.writelines(b"w%d %b\n" % (k, numbers) for k in range(count))


def peak():
    """Kilobytes of the largest memory that this process had."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def tokenizing(text, vocabulary):
    """Lines a second of both tokenizers, taking turns; and what learning takes."""
    import tensorflow as tf

    import keras_transformer as kt

    with gzip.open(text, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    learners = {"SentencePiece, bpe": kt.SubwordTokenizer, "WordPiece": kt.WordPieceTokenizer}
    tokenizers, rows = {}, {}
    for name, kind in learners.items():
        start = time.perf_counter()
        tokenizers[name] = kind.train(lines, 8000)
        rows[f"{name}: to learn 8,000 ids from {len(lines):,} lines"] = (
            f"{time.perf_counter() - start:.1f} s"
        )
    if vocabulary:
        tokenizers["WordPiece"] = kt.WordPieceTokenizer.from_vocabulary(vocabulary, True)
    batches = [tf.constant(lines[i : i + BATCH]) for i in range(0, len(lines), BATCH)]
    speeds = {name: [] for name in tokenizers}
    for number in range(ROUNDS + 1):  # the first traces
        for name, tokenizer in tokenizers.items():
            graph = tokenizer.graph = getattr(tokenizer, "graph", None) or tf.function(
                lambda text, cut=tokenizer: cut(text).flat_values,
                input_signature=[tf.TensorSpec([None], tf.string)],
            )
            start = time.perf_counter()
            for batch in batches:
                graph(batch)
            if number:
                speeds[name].append(len(lines) / (time.perf_counter() - start))
    for name, values in speeds.items():
        low, high = min(values), max(values)
        rows[f"{name}: lines a second, median of {ROUNDS} (range)"] = (
            f"{statistics.median(values):,.0f} ({low:,.0f}–{high:,.0f})"
        )
    return rows


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
