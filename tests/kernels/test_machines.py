"""A graph decides where it runs how to multiply: its answers are rounded right on every machine."""

import pytest
import tensorflow as tf

from keras_transformer.kernels.products import multiply
from keras_transformer.kernels.tensorflow.products import select_matmul_at_runtime
from keras_transformer.serving.acceptance.server_process import ServerProcess

ULP = 2.0**-7


@pytest.fixture(scope="module")
def version_dir(tmp_path_factory):
    """A SavedModel that multiplies in bfloat16."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")], autograph=False)
    def serve(x):
        rows = tf.cast(x, tf.bfloat16)
        product = select_matmul_at_runtime(
            lambda: multiply(rows, tf.ones([2, 8], "bfloat16")), "bfloat16", x
        )
        return {"product": tf.cast(product, tf.float32)}

    directory = tmp_path_factory.mktemp("machines") / "1"
    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(directory), signatures={"serving_default": serve})
    return directory


@pytest.mark.parametrize("one_dnn", ["0", "1"])
def test_a_server_rounds_to_nearest_whatever_its_kernels_do(version_dir, monkeypatch, one_dnn):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", one_dnn)
    with ServerProcess(version_dir) as server:
        for rows in (1, 8):
            found = server.predict([[1.0, 0.75 * ULP]] * rows)["product"]
            assert found == [[1.0 + ULP] * 8] * rows
