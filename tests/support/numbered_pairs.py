"""Pairs of given lengths whose ids are written in the text, and the batches made of them."""

import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data.pairs import Sentences


def sentences_of(rows):
    ids = np.array([id for row in rows for id in row], np.int32)
    return Sentences([(ids, np.cumsum([0, *map(len, rows)]))])


def numbers(lines, end):
    """A tokenizer whose ids are written in the text: "7 8" is [7, 8]."""
    lines = [f"{line} {kt.END}" for line in lines] if end else lines
    words = tf.strings.split(tf.constant(lines, tf.string, shape=[len(lines)]))
    return words.with_flat_values(tf.strings.to_number(words.flat_values, tf.int32))


def pairs_of_lengths(lengths):
    """Pairs of so many tokens, END not counted; the first token of both sides numbers the pair."""
    return [
        tuple(" ".join([str(100 + i)] + ["9"] * (length - 1)) for length in both)
        for i, both in enumerate(lengths)
    ]


def random_pairs(count=500, longest=29, seed=0):
    return pairs_of_lengths(np.random.default_rng(seed).integers(1, longest + 1, (count, 2)))


def dataset_of(pairs, tokens_per_batch=200, max_length=30, **options):
    return kt.make_dataset(pairs, numbers, numbers, tokens_per_batch, max_length, **options)


def batches_of(dataset):
    """The batches as plain lists, to be compared: [(source, target_in, target_out), …]."""
    return [tuple(np.asarray(x).tolist() for x in (*inputs, out)) for inputs, out in dataset]


def trimmed(row):
    """A row without its padding, which may stand at its end only."""
    length = sum(id != kt.PAD for id in row)
    assert kt.PAD not in row[:length]
    return row[:length]
