"""Times of ensembles beside one model, and of a prompt that is passed at once beside its steps.

    python -m benchmarks.ensembles

The base model with 32,000 ids: milliseconds, medians of rounds in which all have their turn.
"""

import functools
import os
import statistics
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.translation.ensemble import combine

IDS, PROMPT, STEPS = 32_000, 200, 24
RANDOM = np.random.default_rng(0)


def search(model, rows, length, beam_size, prefix=None, at_once=True):
    """A function that searches, as one graph."""

    @tf.function(autograph=False)
    def run(source):
        step = model.make_step()
        if not at_once:
            step = functools.partial(step)  # without the attribute `takes_several`
        how = {"beam_size": beam_size, "prefix": prefix}
        return kt.search(step, model.initial_state(source), rows, length, **how)

    source = tf.constant(RANDOM.integers(4, IDS, (rows, 30)), tf.int32)
    return lambda: run(source)[0].numpy()


def medians(*functions, rounds=5):
    """Milliseconds of each."""
    seconds = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(rounds):
        for function, measured in zip(functions, seconds, strict=True):
            started = time.perf_counter()
            function()
            measured.append(time.perf_counter() - started)
    return [1000 * statistics.median(measured) for measured in seconds]


def main():
    kt.configure_threads()
    models = [kt.Transformer(IDS, IDS, share_embeddings="all", max_length=256) for _ in range(3)]
    sizes = [sum(w.value.numpy().nbytes for w in model.weights) / 2**20 for model in models]
    print(f"each model has weights of {sizes[0]:.0f} MiB")
    prompt = tf.constant(RANDOM.integers(4, IDS, (1, PROMPT)), tf.int32)
    for beam_size in (1, 4):
        arguments = models[0], 1, PROMPT + 1, beam_size, prompt
        both = medians(search(*arguments), search(*arguments, at_once=False))
        print(f"{PROMPT} tokens, beam {beam_size}: {both[0]:.0f} at once, {both[1]:.0f} by steps")
    for rows in (1, 32):
        for beam_size in (1, 4):
            found = medians(
                *(search(combine(models[:n]), rows, STEPS, beam_size) for n in (1, 2, 3)), rounds=3
            )
            values = ", ".join(f"{value:.0f} ({value / found[0]:.2f})" for value in found)
            print(f"{rows} rows, beam {beam_size}: {values} with one, two and three models")


if __name__ == "__main__":
    main()
