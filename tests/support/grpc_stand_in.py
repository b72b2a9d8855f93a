"""A gRPC server on TF Serving's own stubs; the model runs in TensorFlow's C++ loader."""

import contextlib
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from keras_transformer.serving.versions import SIGNATURES


class GrpcStandIn(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Serves one version of one model.

    Args:
        process: `ServerProcess`.
        name, version, label: what clients may ask for.

    Attributes:
        unavailable: number of requests still to be refused with UNAVAILABLE.
        delay: seconds before an answer.
        count: number of requests received.
    """

    def __init__(self, process, name="toy", version=1, label="stable"):
        self.process = process
        self.known = {"name": name, "version": version, "label": label}
        self.unavailable = 0
        self.delay = 0.0
        self.count = 0
        self.lock = threading.Lock()

    def Predict(self, request, context):
        """One batch, as tensorflow_serving/servables/tensorflow/predict_util.cc has it."""
        time.sleep(self.delay)
        with self.lock:
            self.count += 1
            self.unavailable -= 1
            if self.unavailable >= 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Servable not yet available")
        spec = request.model_spec
        wanted = {"name": spec.name}
        if spec.HasField("version"):
            wanted["version"] = spec.version.value
        if spec.version_label:
            wanted["label"] = spec.version_label
        if any(self.known[key] != value for key, value in wanted.items()):
            context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {wanted}")
        name = spec.signature_name or "serving_default"
        inputs = {key: tf.make_ndarray(tensor).tolist() for key, tensor in request.inputs.items()}
        with self.lock:
            outputs = self.process.predict(inputs, name)
        if "error" in outputs:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, outputs["error"])
        reply = predict_pb2.PredictResponse()
        reply.model_spec.name = spec.name
        for key, (_, dtype) in SIGNATURES[name].outputs.items():
            values = np.array(outputs[key], dtype=object if dtype == "string" else None)
            reply.outputs[key].CopyFrom(tf.make_tensor_proto(values, tf.as_dtype(dtype)))
        return reply


@contextlib.contextmanager
def serving(stand_in):
    """Runs a stand-in for a while; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(stand_in, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
