"""What a deployed translator costs, and whether CTranslate2 agrees with it.

    python -m benchmarks.serving BASE [--run RUN --source FILE]

BASE is a version directory or the one above. It is loaded as a server loads it: TensorFlow's C++
loader, XLA off, in a process of its own (`ServerProcess`). With a run directory and sentences, the
run's greedy and beam translations are compared with CTranslate2's of the same weights. How fast
this machine multiplies in bfloat16 is said as well.
"""

import argparse
import collections
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tensorflow.core.protobuf import saved_model_pb2  # noqa: E402

from keras_transformer import load  # noqa: E402
from keras_transformer.data.text_files import read_lines
from keras_transformer.presets import SearchConfig  # noqa: E402
from keras_transformer.serving.saved_model import version_dir  # noqa: E402
from keras_transformer.serving.server_process import ServerProcess  # noqa: E402
from keras_transformer.serving.trial import read_warm_up
from tests.support.ctranslate2_oracle import translate_with_ctranslate2  # noqa: E402

ROUNDS = 15


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="an exported model")
    parser.add_argument("--run", help="the run that CTranslate2 is to be given")
    parser.add_argument("--source", help="sentences to compare on, line by line")
    arguments = parser.parse_args()
    directory = version_dir(arguments.base)
    print_sizes(directory)
    print_latencies(directory)
    print_ops(directory)
    print_bfloat16()
    if arguments.run:
        print_agreement(load(arguments.run), read_lines(arguments.source))


def print_sizes(directory):
    print("| file | kB on disk |\n|---|---|")
    for parent, _, names in sorted(os.walk(directory)):
        for name in sorted(names):
            path = os.path.join(parent, name)
            print(f"| {os.path.relpath(path, directory)} | {os.path.getsize(path) / 1e3:.0f} |")


def print_latencies(directory):
    """Load time; then, each in a fresh process, the first request and the median of later ones."""
    requests = [inputs["text"] for name, inputs in read_warm_up(directory) if name.endswith("lt")]
    texts = max(requests, key=len)
    print(
        "\n| rows | load, s | first request, ms | later, median ms | spread |"
        "\n|---|---|---|---|---|"
    )
    for rows in (1, 32):
        batch = (texts * rows)[:rows]
        with ServerProcess(directory) as server:
            times = []
            for _ in range(1 + ROUNDS):
                started = time.perf_counter()
                server.predict(batch)
                times.append(1e3 * (time.perf_counter() - started))
            first, *later = times
            print(
                f"| {rows} | {server.load_seconds:.2f} | {first:.0f} "
                f"| {statistics.median(later):.1f} | {min(later):.1f}–{max(later):.1f} |"
            )


def print_ops(directory):
    """Every op of the graph and its functions: `stripped_op_list` leaves out those in loops."""
    with open(os.path.join(directory, "saved_model.pb"), "rb") as file:
        (meta_graph,) = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    graph = meta_graph.graph_def
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    ops = collections.Counter(node.op for node in nodes)
    print(f"\n{len(nodes)} nodes, {len(ops)} ops: " + ", ".join(sorted(ops)))


def print_bfloat16():
    """Products of a step of decoding in both precisions: why exports compute in float32."""
    import tensorflow as tf

    print("\n| rows × inputs × outputs | float32, ms | bfloat16, ms | ratio |\n|---|---|---|---|")
    for sizes in ((32, 128, 384), (32, 128, 9900), (32, 512, 2048), (1, 512, 2048)):
        rows, inputs, outputs = sizes
        medians = []
        for dtype in (tf.float32, tf.bfloat16):
            a = tf.cast(tf.random.normal([rows, inputs]), dtype)
            b = tf.cast(tf.random.normal([inputs, outputs]), dtype)
            multiply = tf.function(tf.matmul, autograph=False)
            times = []
            for _ in range(1 + ROUNDS):
                started = time.perf_counter()
                for _ in range(20):
                    product = multiply(a, b)
                product[0, 0].numpy()
                times.append(1e3 * (time.perf_counter() - started) / 20)
            medians.append(statistics.median(times[1:]))
        single, half = medians
        print(
            f"| {' × '.join(map(str, sizes))} | {single:.2f} | {half:.2f} | {half / single:.1f} |"
        )


def print_agreement(translator, sources):
    from keras_transformer.tools.ctranslate2 import export_ctranslate2

    print("\n| search | sentences | equal | of the others, ours more probable |\n|---|---|---|---|")
    longest = translator.model.max_length
    with tempfile.TemporaryDirectory() as parent:
        path = export_ctranslate2(translator, os.path.join(parent, "model"))
        for beam_size in (1, 5):
            search = SearchConfig(beam_size=beam_size, length_penalty=0.0)
            ours = [best[0] for best in translator.translate_n_best(sources, search=search)]
            theirs = translate_with_ctranslate2(path, sources, beam_size, longest, os.cpu_count())
            both = list(zip(ours, theirs, strict=True))
            equal = sum(a == b for (a, _), (b, _) in both)
            better = sum(a != b and x > y for (a, x), (b, y) in both)
            share = 100 * equal / len(sources)
            print(f"| beam {beam_size} | {len(sources)} | {share:.2f} % | {better} |")


if __name__ == "__main__":
    main()
