"""What products of integers take beside float32 and bfloat16, with TensorFlow's own operations.

    python -m benchmarks.integer_products

A quarter of the softmax of NLLB-600M's sizes on one core: milliseconds, medians of five.
"""

import os
import statistics
import time

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np
import tensorflow as tf

HEIGHT, WIDTH, ROUNDS = 1024, 64_051, 5
RANDOM = np.random.default_rng(0)


def make_products():
    """Functions from rows, floats and bytes, to their product, by names."""
    kernel = tf.constant(RANDOM.normal(size=(HEIGHT, WIDTH)), tf.float32)
    columns = tf.transpose(tf.cast(kernel, tf.bfloat16))  # as `graph_projection` has them
    bias = tf.zeros([WIDTH])
    integers = tf.constant(RANDOM.integers(-127, 128, (HEIGHT, WIDTH)), tf.int8)
    flags = {"adj_x": False, "adj_y": False, "grad_x": False, "grad_y": False}

    def bfloat16(x, _):
        product = tf.matmul(tf.cast(x, tf.bfloat16), columns, transpose_b=True)
        return product + tf.cast(bias, tf.bfloat16)

    def batched(_, x):
        return tf.raw_ops.BatchMatMulV3(x=tf.cast(x, tf.int8), y=integers, Tout=tf.int32, **flags)

    def quantized(_, x):
        a, b = tf.bitcast(x, tf.quint8), tf.bitcast(integers, tf.qint8)
        ranges = dict(min_a=0.0, max_a=1.0, min_b=-1.0, max_b=1.0, input_quant_mode="SCALED")
        product, _, _ = tf.raw_ops.QuantizedMatMulWithBias(
            a=a, b=b, bias=bias, Toutput=tf.qint32, **ranges
        )
        return tf.bitcast(product, tf.int32)

    return {
        "float32": lambda x, _: tf.matmul(x, kernel),
        "bfloat16": bfloat16,
        "MatMul of int32": lambda _, x: tf.matmul(
            tf.cast(x, tf.int32), tf.cast(integers, tf.int32)
        ),
        "BatchMatMulV3 of int8": batched,
        "QuantizedMatMulWithBias": quantized,
    }


def measure(function, *inputs):
    """Milliseconds of a call, with the sum of its product, so that it is computed."""
    run = tf.function(lambda *x: tf.reduce_sum(function(*x)), autograph=False)
    run(*inputs)
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run(*inputs).numpy()
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds)


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    print("| rows | product | ms |\n|---|---|---|")
    for rows in (1, 4, 32):
        floats = tf.constant(RANDOM.normal(size=(rows, HEIGHT)), tf.float32)
        integers = tf.constant(RANDOM.integers(0, 256, (rows, HEIGHT)), tf.uint8)
        for name, function in make_products().items():
            print(f"| {rows} | {name} | {measure(function, floats, integers):.0f} |", flush=True)


if __name__ == "__main__":
    main()
