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
from tests.support import child_process
from tests.support.layer_harness import assert_close, randomize
from tests.support.paths import SUPPORT

VOCABULARY = 20
# Shapes of ids: the source's, with the length of the target.
SHAPES = [((2, 5), 4), ((4, 9), 12), ((1, 1), 1)]
TFJS = os.environ.get("TFJS")


def draw_ids(rows, length, seed):
    """Ids with padding: none in the first row, one more in each of the others."""
    ids = np.random.default_rng(seed).integers(4, VOCABULARY, (rows, length), dtype="int32")
    return np.where(np.arange(length) < length - np.arange(rows)[:, None], ids, 0)


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
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
    model = randomize(kt.Transformer(VOCABULARY, VOCABULARY, **sizes | options))
    return model, [
        {"source": draw_ids(*shape, seed=1), "target": draw_ids(shape[0], length, seed=2)}
        for shape, length in SHAPES
    ]


def rich_transformer():
    return transformer(
        positions="rotary", share_embeddings="all", norm="pre", output_bias=True, suppress_ids=True
    )


def call(model, inputs):
    """The model in memory, on a dict of arrays."""
    if isinstance(model, kt.Transformer):
        return model((inputs["source"], inputs["target"]))
    return model(inputs["ids"])


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


def export(model, format, folder):
    """Exports a model; returns a function from a dict of arrays to what the file computes."""
    file, load = RUNTIMES[format]
    model.export(folder / file, format=format, verbose=False)
    return load(folder / file)


def check_same(run, model, batches):
    for inputs in batches:
        assert_close(run(inputs), call(model, inputs))


@pytest.mark.parametrize("format", RUNTIMES)
def test_same_numbers(format, tmp_path):
    model, batches = rich_transformer()
    call(model, batches[0])
    check_same(export(model, format, tmp_path), model, batches)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["learned", "relative", "bucketed", "disentangled"])
def test_positional_encodings(positions, tmp_path):
    model, batches = classifier(positions)
    for format in ("onnx", "litert"):
        call(model, batches[0])
        check_same(export(model, format, tmp_path), model, batches)


@pytest.mark.parametrize("format", ["onnx", "litert"])
def test_invalid_ids_are_errors(format, tmp_path):
    """Not some other row of the embedding."""
    model, batches = classifier()
    call(model, batches[0])
    run = export(model, format, tmp_path)
    check_same(run, model, batches)
    for invalid in (-1, VOCABULARY):
        with pytest.raises(Exception, match="out of .*bounds"):
            run({"ids": np.full_like(batches[0]["ids"], invalid)})


def test_tflite_converter_and_what_onnx_cannot_compute(tmp_path):
    """TensorFlow's own converter, from what `export` writes."""
    model, batches = transformer(activation="celu")
    call(model, batches[0])
    model.export(tmp_path / "model", verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    check_same(run_litert(tmp_path / "model.tflite"), model, batches)


@pytest.mark.ordeal
@pytest.mark.parametrize("make", [classifier, transformer])
def test_tensorflow_js(make, tmp_path):
    """The SavedModel of `model.export` by TensorFlow.js' converter, run by Node."""
    if not TFJS or not shutil.which("node"):
        pytest.skip("needs Node, and TFJS, an environment: see `make ordeal`")
    model, batches = make()
    expected = [call(model, inputs) for inputs in batches]
    model.export(tmp_path / "model", verbose=False)
    converter = [os.path.join(TFJS, "bin", "tensorflowjs_converter")]
    converter += ["--input_format=tf_saved_model", tmp_path / "model", tmp_path / "js"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    child_process.run(converter, env=environment, check=True, capture_output=True)
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
