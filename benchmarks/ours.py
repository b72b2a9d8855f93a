"""Our systems: what `make bench` times of this package."""

import contextlib
import functools
import os
import tempfile
import unittest.mock

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from benchmarks.shapes import SHAPES
from benchmarks.timed_fit import TimedFit
from benchmarks.vocabulary import synthetic_tokenizer
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.saved_model import export
from keras_transformer.serving.server_process import ServerProcess


def make_model(shape, precision="float32", **options):
    """A `Transformer` with weights as they start, whose END can never be the best token."""
    keras.utils.set_random_seed(0)
    sizes = (shape.layers, shape.d_model, shape.heads, shape.d_ff, shape.dropout)
    options = {"share_embeddings": "all", "dtype": precision} | options
    if shape.marian:
        options |= {"activation": "silu", "output_bias": True, "suppress_ids": True}
    model = kt.Transformer(shape.vocabulary, shape.vocabulary, *sizes, **options)
    model.build()
    embeddings = model.target_embedding.embeddings
    # Special tokens get the logit 0, and of thousands of random ones some are above.
    embeddings.assign(np.concatenate([np.zeros((4, shape.d_model)), embeddings[4:]]))
    if shape.marian:
        suppressed = np.zeros(shape.vocabulary)
        suppressed[[kt.PAD, kt.START]] = -1000
        model.suppressed.assign(suppressed)
    return model


def training(
    shape,
    precision="float32",
    jit_compile=False,
    apart=False,
    steps=1,
    positions="sinusoidal",
    rdrop=0.0,
    steps_per_execution=None,
    strategy=None,
):
    """Runs `steps` steps in one `model.fit`; `apart`: each core takes a slice of the batch."""
    shape = SHAPES[shape]
    parallel_microbatches = kt.configure_threads() if apart else 1
    scope = kt.make_strategy(strategy).scope() if strategy else contextlib.nullcontext()
    with scope:
        model = make_model(shape, precision, positions=positions)
        model.parallel_microbatches = parallel_microbatches
        how = dict(steps_per_execution=steps_per_execution or steps, rdrop=rdrop)
        loss = kt.SmoothedCrossEntropy(0.1)
        model.compile(kt.EMAAdam(1e-4), loss, jit_compile=jit_compile, **how)
    return TimedFit(model, shape.dataset(steps))


def decoding(shape, rows, beam_size=1, jit_compile=False, precision="float32", **options):
    """Decoding in memory, ids to ids; options of the model."""
    shape = SHAPES[shape]
    model = make_model(shape, precision, **options)
    config = kt.SearchConfig(beam_size=beam_size)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def translate(source):
        state = model.initial_state(source, shape.steps if jit_compile else None)
        step = model.make_step("xla" if jit_compile else "graph")
        arguments = step, state, rows, shape.steps, config
        return kt.search(*arguments, fixed_shapes=jit_compile)

    source = tf.constant(shape.ids(rows, shape.steps, 2))
    return lambda: _check(translate(source)[0].numpy()[:, 0], rows, shape.steps)


def translation(shape, rows, beam_size=1, apart=False, precision=None):
    """`Translator.translate` in memory, text to text; `apart`: as the command line sets it up.

    By default in the precision that a model trained by `--precision auto` has here.
    """
    from keras_transformer.kernels.tensorflow.machine import choose_precision

    shape = SHAPES[shape]
    if apart:
        kt.configure_threads()
    tokenizer = synthetic_tokenizer(shape.vocabulary)
    model = make_model(shape, precision or choose_precision("auto"))
    translator = kt.Translator(model, tokenizer, tokenizer, max_output_length=shape.steps)
    ids = shape.ids(rows, shape.steps, 2)[:, :-1]  # END is added
    texts = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    search = kt.SearchConfig(beam_size=beam_size)

    def translate():
        found = translator.translate(texts, search=search)
        _check(np.array([line.split() for line in found]), rows, shape.steps)

    return translate


def decoding_without_cache(shape, rows, one_by_one=False):
    """Reads the whole prefix anew at every step; `one_by_one`, as the official tutorial does it."""
    shape = SHAPES[shape]
    model = make_model(shape)

    @functools.partial(tf.function, reduce_retracing=True)
    def translate(source):
        memory = model.encode(source)
        written = tf.TensorArray(tf.int32, shape.steps + 1, clear_after_read=False)
        written = written.write(0, tf.fill([tf.shape(source)[0]], kt.START))
        for position in tf.range(shape.steps):
            prefix = tf.transpose(written.gather(tf.range(position + 1)))
            logits = model.decode(prefix, memory, source)[:, -1]
            written = written.write(position + 1, tf.argmax(logits, -1, tf.int32))
        return tf.transpose(written.stack())[:, 1:]

    source = tf.constant(shape.ids(rows, shape.steps, 2))
    parts = tf.split(source, rows) if one_by_one else [source]

    def run():
        found = [translate(part).numpy() for part in parts]
        _check(np.concatenate(found), rows, shape.steps)

    return run


def exported_decoding(shape, rows, beam_size=1, computation="float32"):
    """Decoding by the exported SavedModel, text to text, loaded as a server loads it, XLA off."""
    shape = SHAPES[shape]
    tokenizer = synthetic_tokenizer(shape.vocabulary)
    translator = kt.Translator(make_model(shape), tokenizer, tokenizer)
    signature = "serving_default" if beam_size == 1 else "beam"
    how = dict(beam_size=beam_size, max_output_length=shape.steps, computation=computation)
    config = ExportConfig(signatures=(signature,), **how)
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(export(translator, folder, config=config))
    ids = shape.ids(rows, shape.steps, 2)
    texts = [text.decode() for text in tokenizer.detokenize(ids[:, :-1]).numpy()]  # END is added

    def translate():
        outputs = server.predict(texts, signature)["text"]
        best = [found if beam_size == 1 else found[0] for found in outputs]
        _check(np.array([line.split() for line in best]), rows, shape.steps)

    return translate


def start_server(path, **environment):
    """The process of an export; an error if there is a GPU here that it does not use."""
    if on_gpu := tf.config.list_physical_devices("GPU"):
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # unset, an export runs on the CPU
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "0", "CUDA_VISIBLE_DEVICES": card}
    with unittest.mock.patch.dict(os.environ, environment):
        server = ServerProcess(path)
    log = os.pread(server._log.fileno(), 100_000, 0)
    if on_gpu and b"Created device" not in log:
        raise RuntimeError(f"An export runs on the CPU here:\n{log.decode(errors='replace')}")
    return server


def training_products(shape):
    """The matrix products of a training step and nothing else: what TensorFlow needs for them.

    Layers without biases, normalisation, activations and softmax, float32, and their gradients.
    """
    shape = SHAPES[shape]
    width, tokens = shape.d_model, shape.rows * shape.length
    heads = shape.rows, shape.heads, shape.length, width // shape.heads

    def weight(rows, columns, scale=1.0):
        return tf.Variable(tf.random.normal([rows, columns], stddev=scale * rows**-0.5))

    small = (heads[2] * heads[3]) ** -0.5  # the products of heads add up so many numbers
    attentions = [
        [weight(width, width, scale) for scale in (1, 1, 1, small)] for _ in range(3 * shape.layers)
    ]
    feed_forwards = [
        [weight(width, shape.d_ff), weight(shape.d_ff, width)] for _ in range(2 * shape.layers)
    ]
    embeddings = weight(shape.vocabulary, width)
    weights = [*sum(attentions, []), *sum(feed_forwards, []), embeddings]
    inputs = tf.random.normal([tokens, width])

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for *projections, output in attentions:
                # Keys and values of x: of y, numbers would vanish by the power of three.
                pairs = zip((y, x, x), projections, strict=True)
                query, key, value = (tf.reshape(states @ weight, heads) for states, weight in pairs)
                y = tf.matmul(tf.matmul(query, key, transpose_b=True), value)
                y = tf.reshape(y, [tokens, width]) @ output
            for inner, outer in feed_forwards:
                y = y @ inner @ outer
            logits = tf.matmul(y, embeddings, transpose_b=True)
        gradients = tape.gradient(logits, [x, *weights], output_gradients=logits)
        return [gradient[0, 0] for gradient in gradients]

    def run():
        if not np.isfinite(step(inputs)[0].numpy()):
            raise RuntimeError("Products of numbers out of range are no measure.")

    return run


def matrix_product(size=2048, repetitions=4, precision="float32"):
    """The largest matrix products of the machine: what everything is measured against."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(2, size, size)).astype("float32")
    a, b = (tf.cast(x, precision) for x in numbers)

    def multiply():
        for _ in range(repetitions):
            product = tf.matmul(a, b)
        product[0, 0].numpy()

    return multiply


def _check(ids, rows, steps):
    """Every system has to take all the steps, in ids or in the words of `synthetic_tokenizer`."""
    special = ids.dtype.kind == "i" and (ids < 4).any()
    if ids.shape != (rows, steps) or special:
        raise RuntimeError(f"Expected {rows} × {steps} tokens, got {ids.shape}: {ids[:2]}.")
