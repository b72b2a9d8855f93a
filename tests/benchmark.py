"""Times our parts beside what users would take instead, in one run: `make bench`.

Prints medians of rounds taken in turn, and their ratios. Times mean nothing by themselves on a
shared machine; the ratios are what to look at.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras_nlp import layers as peer  # noqa: E402

import keras_transformer as kt  # noqa: E402

LAYERS, D_MODEL, D_FF, HEADS, VOCABULARY = 3, 256, 1024, 4, 8000
ROWS, LENGTH = 64, 24
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7


def peer_model():
    """The same sizes from KerasHub's layers, as its guides put them together."""
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")

    def embed(ids):
        x = keras.layers.Embedding(VOCABULARY, D_MODEL, mask_zero=True)(ids)
        return x + peer.SinePositionEncoding()(x)

    memory, x = embed(source), embed(target)
    for _ in range(LAYERS):
        memory = peer.TransformerEncoder(D_FF, HEADS, dropout=0.1)(memory)
    for _ in range(LAYERS):
        x = peer.TransformerDecoder(D_FF, HEADS, dropout=0.1)(x, memory)
    return keras.Model((source, target), keras.layers.Dense(VOCABULARY)(x))


def training_step(model, loss):
    """One step of `model.fit` on a fixed batch, graph mode, float32."""
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=False)
    random = np.random.default_rng(0)
    source, target = (random.integers(4, VOCABULARY, (ROWS, LENGTH), "int32") for _ in range(2))
    dataset = tf.data.Dataset.from_tensors(((source, target), target))
    return lambda: model.fit(dataset, shuffle=False, verbose=0)


def decoding(model, source):
    """Greedy search to LENGTH steps with our cache, and without: the prefix read anew each step."""
    batch_size = source.shape[0]

    def uncached(ids, position, prefix):
        prefix = tf.concat([prefix, ids[:, None]], axis=1)
        return without_end(model.decode(prefix, memory, source)[:, -1]), prefix

    def cached(ids, position, state):
        logits, state = model.step(ids, position, state)
        return without_end(logits), state

    def without_end(logits):  # so that every system takes all steps
        return logits - 1e9 * tf.one_hot(kt.END, VOCABULARY)

    memory = model.encode(source)
    empty = tf.zeros([batch_size, 0], tf.int32)
    with_cache = tf.function(
        lambda: kt.greedy_search(cached, model.initial_state(source), batch_size, LENGTH)
    )
    without = tf.function(lambda: kt.greedy_search(uncached, empty, batch_size, LENGTH))
    return with_cache, without


def compare(title, systems):
    """Times every system in turn, ROUNDS times, after one round of warm-up."""
    times = {name: [] for name in systems}
    for _ in range(ROUNDS + 1):
        for name, run in systems.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    ours = next(iter(medians.values()))
    for name, median in medians.items():
        spread = f"{min(times[name][1:]) * 1e3:.0f}–{max(times[name][1:]) * 1e3:.0f}"
        print(f"| {title} | {name} | {median * 1e3:.0f} | {spread} | {median / ours:.2f} |")


def main():
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}, {os.cpu_count()} CPUs")
    print(f"{LAYERS}+{LAYERS} layers, {D_MODEL}/{D_FF}, V {VOCABULARY}, {ROWS}×{LENGTH}, float32")
    print("| work | system | median ms | spread | time ÷ ours |\n|---|---|---|---|---|")
    model = kt.Transformer(VOCABULARY, VOCABULARY, LAYERS, D_MODEL, HEADS, D_FF)
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compare(
        "training step",
        {
            "ours": training_step(model, kt.SmoothedCrossEntropy(0.1)),
            "KerasHub layers": training_step(peer_model(), crossentropy),
        },
    )
    for rows in (1, 32):
        source = np.random.default_rng(1).integers(4, VOCABULARY, (rows, LENGTH), "int32")
        cached, uncached = decoding(model, tf.constant(source))
        systems = {"ours": cached, "ours, no cache": uncached}
        compare(f"{LENGTH} greedy steps, batch {rows}", systems)


if __name__ == "__main__":
    main()
