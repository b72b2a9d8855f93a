"""What translating in windows costs beside sorting a whole file by length.

Prints one line: both in one process, in turns, medians of several rounds, and the ratio of each
round's two times.

    python -m benchmarks.streaming RUN_OR_EXPORT FILE [LINES] [ROUNDS]

FILE is plain text or gzipped; its first LINES lines (20,000) are translated.
"""

import itertools
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_transformer as kt
from keras_transformer.data.text_files import read_lines
from keras_transformer.runs.opening import Opened, SentenceTranslator
from keras_transformer.translation.sentences import (
    FIRST_WINDOW,
    WINDOW,
    IncomingLines,
    translate_stream,
)


def main(model, path, lines=20_000, rounds=3):
    """Times both; prints the line."""
    kt.configure_threads()
    translate = SentenceTranslator(Opened(model))
    text = list(itertools.islice(read_lines(path), lines))
    data = "".join(f"{line}\n" for line in text).encode()

    def at_once():
        return translate(text)

    def windows():
        incoming = IncomingLines(reader(data))
        return list(itertools.chain.from_iterable(translate_stream(translate, incoming.take)))

    pairs = list(zip(at_once(), windows(), strict=True))
    others = sum(one != other for one, other in pairs)  # rounding decides between equals
    seconds = {at_once: [], windows: []}
    for _ in range(rounds):
        for way in seconds:
            started = time.perf_counter()
            way()
            seconds[way].append(time.perf_counter() - started)
    whole, parts = seconds.values()
    ratios = sorted(part / one for one, part in zip(whole, parts, strict=True))
    print(
        f"{len(text):,} lines: at once {statistics.median(whole):.1f} s, in windows of "
        f"{FIRST_WINDOW:,} and {WINDOW:,} {statistics.median(parts):.1f} s, "
        f"ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); "
        f"{others} come out otherwise"
    )


def reader(data):
    """Function that reads bytes as a file would."""
    rest = data

    def read(size):
        nonlocal rest
        block, rest = rest[:size], rest[size:]
        return bytes(block)

    return read


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
