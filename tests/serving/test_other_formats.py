"""Models without text in the formats of ONNX Runtime, LiteRT, TensorFlow and TensorFlow.js.

The converters trace a model without knowing batch size and lengths. Each file is run on batches of
several shapes, with padding, by the format's own runtime.
"""

import json
import os
import shutil

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import keras_transformer as kt
from tests.support import child_process, layer_harness
from tests.support.layer_harness import assert_close, functional, randomize
from tests.support.paths import SUPPORT

VOCABULARY = 20
# Shapes of ids: the source's, with the length of the target.
SHAPES = [((2, 5), 4), ((4, 9), 12), ((1, 1), 1)]
TFJS = os.environ.get("TFJS")


def draw_ids(rows, length, seed):
    """Ids with padding: none in the first row, one more in each of the others."""
    ids = np.random.default_rng(seed).integers(4, VOCABULARY, (rows, length), dtype="int32")
    return np.where(np.arange(length) < length - np.arange(rows)[:, None], ids, 0)


def layer():
    """Attention between two sequences, with a mask."""
    arrays = layer_harness.CASES["MultiHeadAttention"].arrays
    model = functional(layer_harness.build("MultiHeadAttention"), arrays)
    return model, [arrays, {name: x[:1, :3] for name, x in arrays.items()}]


def classifier(positions="sinusoidal"):
    """What README and guide call a classifier: an encoder of texts."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    added, relative = positions, "none"
    if positions in ("relative", "bucketed", "rotary", "disentangled"):
        added, relative = "none", positions
    x = kt.PositionalEmbedding(VOCABULARY, 8, positions=added, max_length=9)(ids)
    x = kt.Encoder(1, 8, 2, 16, positions=relative)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = randomize(keras.Model(ids, keras.layers.Dense(3)(x)))
    return model, [{"ids": draw_ids(*shape, seed=length)} for shape, length in SHAPES]


def transformer(**options):
    vocabularies = VOCABULARY, VOCABULARY
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
    model = randomize(kt.Transformer(*vocabularies, **sizes | options))
    return model, [
        {"source": draw_ids(*shape, seed=1), "target": draw_ids(shape[0], length, seed=2)}
        for shape, length in SHAPES
    ]


MODELS = {
    "layer": layer,
    "classifier": classifier,
    "Transformer": transformer,
    "with options": lambda: transformer(
        positions="rotary", share_embeddings="all", norm="pre", output_bias=True, suppress_ids=True
    ),
}
POSITIONS = ("learned", "relative", "bucketed", "rotary", "disentangled")


def call(model, inputs):
    """The model in memory, on a dict of arrays."""
    if isinstance(model, kt.Transformer):
        return model((inputs["source"], inputs["target"]))
    return model(inputs["ids"] if "ids" in inputs else inputs)


def run_onnx(path):
    session = onnxruntime.InferenceSession(path)
    return lambda inputs: session.run(None, inputs)[0]


def run_litert(path):
    """Without TensorFlow's own operations, which this interpreter does not have."""
    signature = Interpreter(str(path)).get_signature_runner()
    return lambda inputs: signature(**inputs)["output_0"]


def run_saved_model(path):
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    return lambda inputs: signature(**inputs)["output_0"]


RUNTIMES = {
    "onnx": ("model.onnx", run_onnx),
    "litert": ("model.tflite", run_litert),
    "tf_saved_model": ("model", run_saved_model),
}
CONVERTED = ("onnx", "litert")


def export(model, format, folder):
    """Exports a model; returns a function from a dict of arrays to what the file computes."""
    file, load = RUNTIMES[format]
    model.export(folder / file, format=format, verbose=False)
    return load(folder / file)


@pytest.mark.parametrize("format", RUNTIMES)
@pytest.mark.parametrize("name", MODELS)
def test_same_numbers(name, format, tmp_path):
    model, batches = MODELS[name]()
    expected = [call(model, inputs) for inputs in batches]
    run = export(model, format, tmp_path)
    for inputs, outputs in zip(batches, expected, strict=True):
        assert_close(run(inputs), outputs)


@pytest.mark.slow
@pytest.mark.parametrize("format", RUNTIMES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_positional_encodings(positions, format, tmp_path):
    model, batches = classifier(positions)
    expected = [call(model, inputs) for inputs in batches]
    run = export(model, format, tmp_path)
    for inputs, outputs in zip(batches, expected, strict=True):
        assert_close(run(inputs), outputs)


@pytest.mark.parametrize("name", ["layer", "classifier", "Transformer"])
def test_tflite_converter(name, tmp_path):
    """TensorFlow's own converter: from a model with one input, or from what `export` writes."""
    model, batches = MODELS[name]()
    if name == "classifier":
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
    else:
        call(model, batches[0])
        model.export(tmp_path / "model", verbose=False)
        converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    run = run_litert(tmp_path / "model.tflite")
    for inputs in batches:
        assert_close(run(inputs), call(model, inputs))


@pytest.mark.parametrize("activation", ["gelu", "celu"])
def test_what_onnx_cannot_compute_is_computed_by_litert(activation, tmp_path):
    model, (inputs, *_) = transformer(activation=activation)
    run = export(model, "litert", tmp_path)
    assert_close(run(inputs), call(model, inputs))


@pytest.mark.parametrize("format", CONVERTED)
def test_invalid_ids_are_errors(format, tmp_path):
    """Not some other row of the embedding."""
    model, (inputs, *_) = classifier()
    call(model, inputs)
    run = export(model, format, tmp_path)
    for invalid in (-1, VOCABULARY):
        with pytest.raises(Exception, match="out of .*bounds"):
            run({"ids": np.full_like(inputs["ids"], invalid)})


@pytest.mark.ordeal
@pytest.mark.parametrize("name", ["layer", "classifier", "Transformer"])
def test_tensorflow_js(name, tmp_path):
    """The SavedModel of `model.export` by TensorFlow.js' converter, run by Node."""
    if not TFJS or not shutil.which("node"):
        pytest.skip("needs Node, and TFJS, an environment: see `make ordeal`")
    model, batches = MODELS[name]()
    expected = [call(model, inputs) for inputs in batches]
    model.export(tmp_path / "model", verbose=False)
    converter = os.path.join(TFJS, "bin", "tensorflowjs_converter")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    child_process.run(
        [converter, "--input_format=tf_saved_model", tmp_path / "model", tmp_path / "js"],
        env=environment,
        check=True,
        capture_output=True,
    )
    arrays = [
        {key: [str(x.dtype), x.shape, x.ravel().tolist()] for key, x in inputs.items()}
        for inputs in batches
    ]
    done = child_process.run(
        ["node", SUPPORT / "run_tfjs.js", tmp_path / "js"],
        env=environment | {"NODE_PATH": os.path.join(TFJS, "node_modules")},
        input=json.dumps(arrays).encode(),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for (shape, values), outputs in zip(found, expected, strict=True):
        assert_close(np.array(values, "float32").reshape(shape), outputs)
