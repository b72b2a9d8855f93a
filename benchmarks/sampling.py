"""What subword sampling costs a training of the preset tiny.

Prints a Markdown table: steps with and without it, in turns in one process, medians of several
rounds, and how the batches of a pass are filled.

    python -m benchmarks.sampling SOURCE TARGET [STEPS] [ROUNDS]

SOURCE, TARGET: text to train on, plain or gzipped. STEPS: steps in a round.
"""

import os
import statistics
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import keras
import numpy as np

import keras_transformer as kt
from benchmarks.timed_fit import TimedFit
from keras_transformer.special_ids import PAD

STRENGTHS = {"none": ("bpe", 0.0), "bpe, 0.1": ("bpe", 0.1), "unigram, 0.2": ("unigram", 0.2)}
VOCABULARY = 9900


def main(source, target, steps=20, rounds=5):
    """Times the steps; prints the table."""
    kt.configure_threads()
    pairs = kt.read_pairs(source, target)
    config = kt.PRESETS["tiny"]
    ways = {}
    for name, (kind, strength) in STRENGTHS.items():
        lines = (side for pair in pairs for side in pair)
        tokenizer = kt.SubwordTokenizer.train(lines, VOCABULARY, kind)
        options = dict(tokens_per_batch=config.tokens_per_batch, subword_sampling=strength)
        dataset = kt.make_dataset(pairs, tokenizer, tokenizer, repeat=True, **options)
        model = kt.Transformer(*[tokenizer.vocabulary_size] * 2, **vars(config.model))
        model.parallel_microbatches = kt.configure_threads(max_parallel=8)
        model.compile(keras.optimizers.Adam(1e-4), kt.SmoothedCrossEntropy(0.1), jit_compile=False)
        ways[name] = model, dataset, fill_of(dataset.stream)
    seconds = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first traces
        for name, (model, dataset, _) in ways.items():
            fit = TimedFit(model, dataset, steps_per_epoch=steps)
            fit()
            seconds[name].append(fit.seconds / steps)
    print("| sampling | ms per step | ratio | steps per epoch | padding |\n|---|---|---|---|---|")
    plain = seconds["none"][1:]
    for name, times in seconds.items():
        ratio = statistics.median(x / y for x, y in zip(times[1:], plain, strict=True))
        batches, padding = ways[name][2]
        milliseconds = 1000 * statistics.median(times[1:])
        print(f"| {name} | {milliseconds:.0f} | {ratio:.2f} | {batches} | {padding:.1%} |")


def fill_of(stream):
    """How many batches a pass has, and what part of them is padding."""
    position, stream.repeat = stream.position, False
    batches = [np.concatenate([source, target], axis=1) for (source, _), target in stream]
    stream.position, stream.repeat = position, True
    padding = sum(np.sum(batch == PAD) for batch in batches) / sum(batch.size for batch in batches)
    return len(batches), padding


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
