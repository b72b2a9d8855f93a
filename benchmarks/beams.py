"""What a beam finds of what greedy search finds, and in which time.

    python -m benchmarks.beams RUN [--source FILE --target FILE --bleu-tokenize none]

A beam may lose what greedy search finds in two ways: by dropping its beginning for others that rank
higher at the time, and by stopping too soon. An exact search, `beam_patience` inf, does the first
only.
"""

import dataclasses
import math
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np  # noqa: E402
import sacrebleu  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_transformer as kt  # noqa: E402
from benchmarks.options import read_options  # noqa: E402
from keras_transformer.data.dates import LANGUAGES, dates
from keras_transformer.data.text_files import read_pairs
from keras_transformer.special_ids import PAD  # noqa: E402
from keras_transformer.translation.text_model import TEXT  # noqa: E402
from keras_transformer.translation.translator import in_threads  # noqa: E402

ROWS = 256  # beams in a batch


@dataclasses.dataclass(frozen=True)
class Options:
    """Compares beams with greedy search.

    Args:
        run: A run directory.
        source: Sentences: text, .gz, or a .tsv with both columns; by default the dates' test.
        target: Their translations, line by line.
        bleu_tokenize: sacreBLEU's tokenizer.
        beam_sizes: Beams to try.
        length_penalties: Values of α to try.
        rounds: Of timing, all searches in turn.
    """

    run: str
    source: str | None = None
    target: str | None = None
    bleu_tokenize: str = "13a"
    beam_sizes: tuple[int, ...] = (3, 4, 5)
    length_penalties: tuple[float, ...] = (0.0, 1.0)
    rounds: int = 3


def main(options: Options) -> None:
    kt.configure_threads()
    pairs = read_pairs(options.source, options.target) if options.source else dates(LANGUAGES).test
    sources, targets = ([pair[side].encode() for pair in pairs] for side in (0, 1))
    translator = kt.load(options.run, precision="float32")
    print(f"{len(sources)} sentences; in brackets, of an exact search; times, of greedy search's\n")
    print("| beam | α | BLEU | greedy ranks higher | time |\n|---|---|---|---|---|")
    for beam_size in options.beam_sizes:
        for length_penalty in options.length_penalties:
            wide = kt.SearchConfig(beam_size, length_penalty)
            exact = dataclasses.replace(wide, beam_patience=math.inf)
            searches = [compiled(translator, how) for how in (kt.SearchConfig(), wide, exact)]
            found = [run(search, sources) for search in searches]
            rounds = [
                [seconds(search, sources) for search in searches] for _ in range(options.rounds)
            ]
            times = [statistics.median(times) for times in zip(*rounds, strict=True)]
            ranks = [rank(hypotheses, length_penalty) for hypotheses in found]
            cells = [
                [
                    f"{bleu(translator, hypotheses, targets, options):.2f}"
                    for hypotheses in found[1:]
                ],
                [f"{100 * np.mean(ranks[0] > beam + 1e-4):.2f} %" for beam in ranks[1:]],
                [f"{time / times[0]:.2f}" for time in times[1:]],
            ]
            cells = " | ".join(f"{ours} ({exactly})" for ours, exactly in cells)
            print(f"| {beam_size} | {length_penalty:g} | {cells} |", flush=True)


def compiled(translator, config):
    """Function from texts `(B,)` to the best tokens `(B, T)` and their log-probabilities."""

    def search(text):
        source, _ = translator.read_source(text)
        state, step = translator.model.initial_state(source), translator.model.make_step()
        loop = step, state, tf.shape(source)[0], translator.max_output_length
        tokens, _, log_prob = kt.search(*loop, config)
        return tokens[:, 0], log_prob[:, 0]

    search = tf.function(search, input_signature=[TEXT], autograph=False)
    return search.get_concrete_function(), max(1, ROWS // config.beam_size)


def run(search, sources):
    """(tokens without padding, log-probability) of each source."""
    function, batch_size = search

    def translate(chosen):
        tokens, log_prob = function(tf.constant([sources[i] for i in chosen]))
        rows = [row[row != PAD] for row in tokens.numpy()]
        return list(zip(rows, log_prob.numpy(), strict=True))

    return in_threads(translate, [len(source) for source in sources], batch_size)


def rank(hypotheses, length_penalty):
    """What the search ranks by: log_prob / lp(length)."""
    lengths = np.array([len(tokens) for tokens, _ in hypotheses])
    log_prob = np.array([log_prob for _, log_prob in hypotheses])
    return log_prob / ((5 + lengths) / 6) ** length_penalty


def bleu(translator, hypotheses, targets, options):
    tokens = tf.ragged.constant([list(tokens) for tokens, _ in hypotheses], tf.int32, ragged_rank=1)
    texts = translator.target_tokenizer.detokenize(tokens.to_tensor(PAD)).numpy()
    texts, targets = ([text.decode(errors="replace") for text in side] for side in (texts, targets))
    how = dict(tokenize=options.bleu_tokenize, force=True)
    return sacrebleu.corpus_bleu(texts, [targets], **how).score


def seconds(search, sources):
    started = time.perf_counter()
    run(search, sources)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(read_options(Options))
