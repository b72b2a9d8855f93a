"""What a longer source, a longer target or a larger batch costs; time and memory."""

import tensorflow as tf

import keras_transformer as kt
from benchmarks.ours import make_model
from benchmarks.shapes import SHAPES


def encoding(shape, length, rows=4):
    """Reads a source: attention grows with the square of its length."""
    shape = SHAPES[shape]
    model = make_model(shape)
    encode = tf.function(model.encode, autograph=False)
    source = tf.constant(shape.ids(rows, length, 0))
    return lambda: encode(source).numpy().size and None


def decoding(shape, length, rows=4):
    """Writes a target of so many tokens: with a cache, a step costs little more than the last."""
    shape = SHAPES[shape]
    model = make_model(shape, max_length=length)
    source = tf.constant(shape.ids(rows, 16, 0))

    @tf.function(autograph=False)
    def translate():
        return kt.greedy_search(model.make_step(), model.initial_state(source), rows, length)[0]

    def run():
        if translate().numpy().shape != (rows, length):
            raise RuntimeError(f"Expected {length} steps.")

    return run
