"""One process on one core against two workers on two: `make bench BENCH="--parts workers"`.

    python -m benchmarks.workers SHAPE STEPS [options of a process of the benchmark]

A process pins itself to a core, trains a few steps of batches of one shape and prints tokens a
second and, of the loopback interface, bytes an update. What two workers exchange counts there once.
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys

ROWS, LENGTH, VOCABULARY = 256, 32, 8000
SHAPES = {"toy": (1, 16, 32), "tiny": (4, 128, 256), "small": (6, 256, 1024)}  # N, D, F


def table(shape, steps, rounds):
    """A Markdown table, medians of rounds that take turns."""
    one, two, sent = [], [], []
    for _ in range(rounds):
        one.append(measure(1, shape, steps)[0])
        speed, exchanged = measure(2, shape, steps)
        two.append(speed)
        sent.append(exchanged)
    (bytes_of_weights,) = {result["bytes"] for result in [one[0], two[0]]}
    speeds = [statistics.median(r["tokens"] for r in results) for results in (one, two)]
    exchanged = statistics.median(sent)
    return "\n".join(
        [
            f"| {shape}, {ROWS} rows of {LENGTH} an update | one process, one core | two workers |",
            "|---|---|---|",
            f"| target tokens a second | 1 | {speeds[1] / speeds[0]:.2f} |",
            f"| MB of weights; exchanged an update | {bytes_of_weights / 1e6:.1f} | "
            f"{exchanged / 1e6:.1f} ({exchanged / bytes_of_weights:.2f} ×) |",
        ]
    )


def measure(workers, shape, steps):
    """Starts processes; the result of the first one, and bytes exchanged an update."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(workers)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    processes = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.workers", shape, str(steps), str(index)],
                env=os.environ | {"TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"A process of the part workers failed: {outputs}")
    result = json.loads(outputs[0].splitlines()[-1])
    return result, result["exchanged"]


def train(shape, steps, core):
    """Trains on one core; tokens a second, bytes of the weights, bytes exchanged an update."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    import numpy as np

    import keras_transformer as kt
    from benchmarks.timed_fit import TimedFit

    strategy = kt.make_strategy("auto")
    layers, width, inner = SHAPES[shape]
    with strategy.scope():
        model = kt.Transformer(
            VOCABULARY, VOCABULARY, layers, width, 4, inner, share_embeddings="all"
        )
        model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False)
    random = np.random.default_rng(0)
    text = [" ".join(map(str, random.integers(4, VOCABULARY, LENGTH - 1))) for _ in range(ROWS * 2)]
    dataset = kt.make_dataset(
        zip(text, text, strict=True), *(_ids,) * 2, tokens_per_batch=ROWS * LENGTH, repeat=True
    )
    TimedFit(model, dataset, steps_per_epoch=2)()
    fit, before = TimedFit(model, dataset, steps_per_epoch=steps), _loopback()
    fit()
    return {
        "tokens": ROWS * LENGTH * steps / fit.seconds,
        "bytes": 4 * model.count_params(),
        "exchanged": (_loopback() - before) / steps,
    }


def _ids(texts, end=False):
    """Ids, written as text, to ids."""
    import tensorflow as tf

    ids = tf.strings.to_number(tf.strings.split(texts), tf.int32)
    return tf.concat([ids, tf.fill([ids.nrows(), 1], 3)], axis=1) if end else ids


def _loopback():
    """Bytes that the loopback interface has received."""
    with open("/proc/net/dev", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.strip().startswith("lo:"))


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], *map(int, sys.argv[2:]))))
