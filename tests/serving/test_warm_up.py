"""Warm-up requests: where a server looks for them, and as it reads them."""

import struct

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.presets import ExportConfig
from keras_transformer.serving.acceptance.server_process import ServerProcess
from keras_transformer.serving.acceptance.trial import (
    MAX_RECORDS,
    WARM_UP,
    read_warm_up,
    write_warm_up,
)
from keras_transformer.serving.saved_model import export
from keras_transformer.serving.signatures import SIGNATURES
from tests.support.toy_translator import toy_pairs, trained_translator


@pytest.fixture(scope="module")
def version_dir(tmp_path_factory):
    return export(
        trained_translator(),
        tmp_path_factory.mktemp("warm_up"),
        config=ExportConfig(signatures=("sample", "score", "tokens")),
        pairs=toy_pairs(40),
    )


def test_batchable_signatures_have_a_small_and_a_large_request(version_dir):
    requests = read_warm_up(version_dir)
    names = ["serving_default", "sample", "score"]
    assert [name for name, _ in requests] == [name for name in names for _ in range(2)]
    assert [{len(x) for x in inputs.values()} for _, inputs in requests] == [{1}, {32}] * 3
    for name, inputs in requests:
        assert inputs.keys() == SIGNATURES[name].inputs.keys()
    assert requests[0][1]["text"] == [toy_pairs(40)[0][0].encode()]


def test_server_answers_every_request(version_dir):
    with ServerProcess(version_dir) as server:
        for name, inputs in read_warm_up(version_dir):
            assert "error" not in server.predict(inputs, name)


def test_file_is_an_uncompressed_record_file_of_prediction_logs(version_dir):
    with open(f"{version_dir}/{WARM_UP}", "rb") as file:
        content = file.read()
    # TFRecord: length, its checksum, the record, its checksum.
    (length,) = struct.unpack("<Q", content[:8])
    log = prediction_log_pb2.PredictionLog.FromString(content[12 : 12 + length])
    assert log.WhichOneof("log_type") == "predict_log"
    request = log.predict_log.request
    assert request.model_spec.signature_name == "serving_default"
    assert request.inputs["text"].dtype == tf.string.as_datatype_enum


def test_a_server_takes_a_thousand_records_at_most(tmp_path):
    write_warm_up(tmp_path, [("serving_default", {"text": tf.constant(["a"])})] * 1001)
    assert len(read_warm_up(tmp_path)) == MAX_RECORDS == 1000


def test_other_logs_are_refused(tmp_path):
    (tmp_path / WARM_UP).parent.mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / WARM_UP)) as writer:
        writer.write(prediction_log_pb2.PredictionLog().SerializeToString())
    with pytest.raises(ValueError, match="a record that is not a prediction"):
        read_warm_up(tmp_path)


def test_version_without_warm_up(tmp_path):
    assert read_warm_up(tmp_path) == []
