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


def classifier(positions="sinusoidal", relative=("none",)):
    """What README and guide call a classifier: an encoder of texts."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = kt.PositionalEmbedding(VOCABULARY, 8, positions=positions, max_length=9)(ids)
    for kind in relative:
        x = kt.Encoder(1, 8, 2, 16, positions=kind)(x)
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


def call(model, inputs):
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


FORMATS = {"onnx": ("model.onnx", run_onnx), "litert": ("model.tflite", run_litert)}


def export(model, batches, format, folder):
    """Returns a function that runs the file, which gives the model's numbers."""
    name, load = FORMATS[format]
    expected = [call(model, inputs) for inputs in batches]
    model.export(folder / name, format=format, verbose=False)
    run = load(folder / name)
    for inputs, outputs in zip(batches, expected, strict=True):
        assert_close(run(inputs), outputs)
    return run


@pytest.mark.parametrize("format", FORMATS)
def test_transformer(format, tmp_path):
    options = dict(positions="rotary", share_embeddings="all", norm="pre", output_bias=True)
    export(*transformer(suppress_ids=True, **options), format, tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_classifier_with_the_other_positions(format, tmp_path):
    """Ids that there are not are errors, not some other row of the embedding."""
    model, batches = classifier("learned", ("relative", "bucketed", "disentangled"))
    run = export(model, batches, format, tmp_path)
    for invalid in (-1, VOCABULARY):
        with pytest.raises(Exception, match="out of .*bounds"):
            run({"ids": np.full_like(batches[0]["ids"], invalid)})


def test_tflite_converter_and_what_onnx_cannot_compute(tmp_path):
    """TensorFlow's own converter, from the SavedModel of `model.export`."""
    model, batches = transformer(activation="celu")
    expected = [call(model, inputs) for inputs in batches]
    model.export(tmp_path / "model", verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    run = run_litert(tmp_path / "model.tflite")
    for inputs, outputs in zip(batches, expected, strict=True):
        assert_close(run(inputs), outputs)


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
    environment["NODE_PATH"] = os.path.join(TFJS, "node_modules")
    options = dict(env=environment, input=json.dumps(arrays).encode(), capture_output=True)
    done = child_process.run(["node", SUPPORT / "run_tfjs.js", tmp_path / "js"], **options)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for (shape, values), outputs in zip(found, expected, strict=True):
        assert_close(np.array(values, "float32").reshape(shape), outputs)
