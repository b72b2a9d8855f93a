"""Checks that training and decoding on this GPU give the numbers of the CPU: `make gpu`.

    python -m benchmarks.gpu_checks [NAME ...]

Prints a line for each check. Without a GPU, the CPU is compared with itself.
"""

import contextlib
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from benchmarks.ours import start_server
from benchmarks.vocabulary import synthetic_tokenizer

GPUS = tf.config.list_physical_devices("GPU")
DEVICE = "GPU:0" if GPUS else "CPU:0"
SCHEMES = "sinusoidal", "relative", "bucketed", "rotary", "disentangled"
HALF = "mixed_bfloat16", "mixed_float16"
VOCABULARY, LENGTH, START, FIRST_ID = 1000, 20, 2, 4


def make_model(precision="float32", **options):
    keras.utils.set_random_seed(0)
    sizes = dict(num_layers=2, d_model=128, num_heads=4, d_ff=256, share_embeddings="all")
    return kt.Transformer(VOCABULARY, VOCABULARY, **sizes | options, dtype=precision)


def make_batch(rows=64):
    """Sentences to be written backwards, with padding."""
    random = np.random.default_rng(1)
    source = random.integers(FIRST_ID, VOCABULARY, (rows, LENGTH), "int32")
    lengths = random.integers(LENGTH // 2, LENGTH + 1, rows)
    target = np.zeros_like(source)
    for row, count in enumerate(lengths):
        source[row, count:] = 0
        target[row, :count] = source[row, :count][::-1]
    start = np.concatenate([np.full((rows, 1), START, "int32"), target[:, :-1]], 1)
    return (source, start), target


def check_logits(positions):
    """Logits as on the CPU."""
    inputs, _ = make_batch()
    with tf.device("CPU:0"):
        copy = make_model(positions=positions)
        expected = copy(inputs).numpy()
    with tf.device(DEVICE):
        model = make_model(positions=positions)
        model.set_weights(copy.get_weights())
        found = model(inputs)
    if DEVICE not in found.device:
        raise RuntimeError(f"computed on {found.device}")
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    if not error < 1e-4:
        raise RuntimeError(f"relative error {error:.1e}")
    return f"relative error {error:.1e}"


def check_training(precision, jit_compile, strategy="one", **options):
    """A loss that falls, on the GPU."""
    with kt.make_strategy(strategy).scope():
        model = make_model(precision)
        how = dict(jit_compile=jit_compile, metrics=[kt.Perplexity()]) | options
        model.compile(kt.EMAAdam(1e-3), kt.SmoothedCrossEntropy(0.1), **how)
    inputs, labels = make_batch()
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat(8).prefetch(2)
    losses = model.fit(data, epochs=3, shuffle=False, verbose=0).history["loss"]
    if not (np.isfinite(losses).all() and losses[-1] < losses[0]):
        raise RuntimeError(f"losses {losses}")
    device = model.variables[0].value.device
    if GPUS and "GPU" not in device:
        raise RuntimeError(f"computed on {device}")
    return "losses " + " ".join(f"{loss:.3f}" for loss in losses)


def check_decoding(precision, xla):
    """The tokens of greedy search on the CPU."""
    source, rows, found = make_batch()[0][0], 64, []
    for device in (DEVICE, "CPU:0"):
        with tf.device(device):
            model = make_model(precision)

        @tf.function(jit_compile=xla, autograph=False)
        def translate(source, model=model):
            state = model.initial_state(source, 24 if xla else None)
            step = model.make_step("xla" if xla else "graph")
            return kt.search(step, state, rows, 24, fixed_shapes=xla)[0]

        with tf.device(device):
            found.append(translate(tf.constant(source)).numpy())
    same = np.mean(found[0] == found[1])
    if precision == "float32" and same < 1:
        raise RuntimeError(f"{same:.1%} of the tokens are the CPU's")
    return f"{same:.1%} of the tokens are the CPU's"


def check_export():
    """The texts of the CPU from an export, in a process that uses the GPU as a server does."""
    tokenizer = synthetic_tokenizer(VOCABULARY)
    texts = [text.decode() for text in tokenizer.detokenize(make_batch(16)[0][0]).numpy()]
    with tempfile.TemporaryDirectory() as folder:
        with tf.device("CPU:0"):
            model = make_model()
            model.build()
            for weight in model.weights:  # else it writes END at once
                weight.assign(4 * weight)
            translator = kt.Translator(model, tokenizer, tokenizer, max_output_length=24)
            expected = translator.translate(texts)
            path = kt.export(translator, folder)
        with start_server(path, NVIDIA_TF32_OVERRIDE="0") as server:
            found = server.predict(texts)["text"]
    if found != expected or len(set(found)) < 8:
        raise RuntimeError("other texts than on the CPU")
    return f"{len(set(found))} texts are the CPU's"


def list_checks():
    """{name: function}"""
    checks = {f"logits, {name}": (check_logits, name) for name in SCHEMES}
    for precision in ("float32", *HALF):
        for xla in (False, True):
            title = f"{precision}{', XLA' * xla}"
            checks[f"training, {title}"] = check_training, precision, xla
            if precision != "mixed_float16":
                checks[f"greedy search, {title}"] = check_decoding, precision, xla
    checks["training, mirrored"] = check_training, "float32", False, "mirrored"
    checks["export"] = (check_export,)
    return checks


def main(names):
    checks = list_checks()
    if unknown := sorted({*names} - checks.keys()):
        sys.exit(f"No check is called {unknown[0]!r}: choose from {'; '.join(checks)}.")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in GPUS:
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
    print(f"TensorFlow {tf.__version__}, {GPUS or 'no GPU: the CPU with itself'}")
    failed = 0
    for name in names or checks:
        function, *arguments = checks[name]
        started = time.perf_counter()
        try:
            answer = "ok    " + function(*arguments)
        except Exception as error:
            failed += 1
            answer = f"FAIL  {type(error).__name__}: {str(error)[:600]}"
        print(f"{name:32} {time.perf_counter() - started:5.1f} s  {answer}", flush=True)
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
