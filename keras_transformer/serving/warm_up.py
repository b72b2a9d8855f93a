"""Warm-up requests: what a server runs once it has loaded a version and before it offers it.

TF Serving reads them from `assets.extra/tf_serving_warmup_requests`, an uncompressed TFRecord file
of `PredictionLog`s. One that fails makes the whole version fail to load.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.typing import Path, Tensor

PATH = os.path.join("assets.extra", "tf_serving_warmup_requests")
MOST_RECORDS = 1000  # of a file; TF Serving refuses more
FRAME = 16  # bytes around every record of a TFRecord file: its length and checksums


def write_warm_up(version_dir: Path, requests: Sequence[tuple[str, Mapping[str, Tensor]]]) -> None:
    """Writes requests where a server looks for them.

    Args:
        version_dir: path of the directory that holds saved_model.pb.
        requests: list of (signature's name, {input's name: tensor}), at most 1000.
    """
    path = os.path.join(version_dir, PATH)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for signature, inputs in requests[:MOST_RECORDS]:
            request = predict_pb2.PredictRequest()
            # A server goes by the directory, not by this name.
            request.model_spec.name = "model"
            request.model_spec.signature_name = signature
            for name, tensor in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
            log = prediction_log_pb2.PredictLog(request=request)
            record = prediction_log_pb2.PredictionLog(predict_log=log)
            writer.write(record.SerializeToString())


def read_warm_up(version_dir: Path) -> list[tuple[str, dict[str, Any]]]:
    """Reads the requests of a version.

    Args:
        version_dir: path of the directory that holds saved_model.pb.

    Returns:
        List of (signature's name, {input's name: nested lists}); empty where there is no file.

    Raises:
        ValueError: If the file is damaged or holds what a server would not run.
    """
    path = os.path.join(version_dir, PATH)
    if not os.path.exists(path):
        return []
    requests, size = [], 0
    try:
        for record in tf.data.TFRecordDataset(path):
            size += FRAME + len(record.numpy())
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            if log.WhichOneof("log_type") != "predict_log":
                raise ValueError(f"{PATH} holds a record that is no prediction.")
            request = log.predict_log.request
            inputs = {
                name: tf.make_ndarray(tensor).tolist() for name, tensor in request.inputs.items()
            }
            requests.append((request.model_spec.signature_name, inputs))
    except (tf.errors.OpError, DecodeError) as error:
        raise ValueError(f"{PATH} is damaged: {error}.") from error
    if size != os.path.getsize(path):  # readers take a cut-off record for the end
        raise ValueError(f"{PATH} is damaged: it ends within a record.")
    if len(requests) > MOST_RECORDS:
        raise ValueError(f"{PATH} holds {len(requests)} records; a server takes {MOST_RECORDS}.")
    return requests
