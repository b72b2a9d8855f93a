"""Models without text in other formats, whose converters know neither batch size nor lengths."""

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
    return randomize(kt.Transformer(VOCABULARY, VOCABULARY, **sizes | options)), [
        {"source": draw_ids(*shape, seed=1), "target": draw_ids(shape[0], length, seed=2)}
        for shape, length in SHAPES
    ]


# Each exports a model, and returns a function by which the format's own runtime runs the file.
def onnx(model, folder):
    model.export(folder / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return lambda inputs: session.run(None, inputs)[0]


def run_litert(path):
    """Without TensorFlow's own operations, which this interpreter does not have."""
    signature = Interpreter(str(path)).get_signature_runner()
    return lambda inputs: signature(**inputs)["output_0"]


def litert(model, folder):
    model.export(folder / "model.tflite", format="litert", verbose=False)
    return run_litert(folder / "model.tflite")


def tensorflow_lite(model, folder):
    """By TensorFlow's own converter, from the SavedModel of `model.export`."""
    model.export(folder / "model", verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "model"))
    (folder / "model.tflite").write_bytes(converter.convert())
    return run_litert(folder / "model.tflite")


def tensorflow_js(model, folder):
    """By TensorFlow.js' converter of SavedModels, run by Node."""
    model.export(folder / "model", verbose=False)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["NODE_PATH"] = os.path.join(TFJS, "node_modules")
    converter = [os.path.join(TFJS, "bin", "tensorflowjs_converter")]
    converter += ["--input_format=tf_saved_model", folder / "model", folder / "js"]
    child_process.run(converter, env=environment, check=True, capture_output=True)

    def run(inputs):
        arrays = {key: [str(x.dtype), x.shape, x.ravel().tolist()] for key, x in inputs.items()}
        options = dict(env=environment, input=json.dumps([arrays]).encode(), capture_output=True)
        done = child_process.run(["node", SUPPORT / "run_tfjs.js", folder / "js"], **options)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        ((shape, values),) = json.loads(done.stdout.splitlines()[-1])
        return np.array(values, "float32").reshape(shape)

    return run


def check(made, export, folder):
    """The file gives the model's numbers; returns the function that runs it."""
    model, batches = made
    # A Transformer takes a tuple.
    expected = [model(tuple(x.values()) if len(x) > 1 else x["ids"]) for x in batches]
    run = export(model, folder)
    for inputs, outputs in zip(batches, expected, strict=True):
        assert_close(run(inputs), outputs)
    return run


@pytest.mark.parametrize("export", [onnx, litert])
def test_transformer(export, tmp_path):
    options = dict(positions="rotary", share_embeddings="all", norm="pre", output_bias=True)
    check(transformer(suppress_ids=True, **options), export, tmp_path)


@pytest.mark.parametrize("export", [onnx, litert])
def test_classifier_with_the_other_positions(export, tmp_path):
    """Ids that there are not are errors, not some other row of the embedding."""
    run = check(classifier("learned", ["relative", "bucketed", "disentangled"]), export, tmp_path)
    for invalid in (-1, VOCABULARY):
        with pytest.raises(Exception, match="out of .*bounds"):
            run({"ids": np.full((2, 5), invalid, "int32")})


def test_what_onnx_cannot_compute(tmp_path):
    check(transformer(activation="celu"), tensorflow_lite, tmp_path)


@pytest.mark.ordeal
@pytest.mark.parametrize("make", [classifier, transformer])
def test_tensorflow_js(make, tmp_path):
    if not TFJS or not shutil.which("node"):
        pytest.skip("needs Node, and TFJS, an environment: see `make ordeal`")
    check(make(), tensorflow_js, tmp_path)
