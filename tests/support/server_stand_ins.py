"""Servers that answer by TF Serving's rules, as far as clients can tell, over REST and over gRPC.

The model runs in TensorFlow's C++ loader; paths, bodies, status codes and error objects follow what
was recorded of TF Serving (model_servers/http_rest_api_handler.cc, util/json_tensor.cc,
servables/tensorflow/predict_util.cc).
"""

import contextlib
import http.client
import json
import re
import socketserver
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from keras_transformer.serving.versions import SIGNATURES

PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?:predict"
)
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}


class Model:
    """Version 1 of `toy`, labelled stable, which a `ServerProcess` computes.

    The next `unavailable` requests are answered with 503; `count` were received, and each takes
    `delay` seconds more.
    """

    known = {"name": "toy", "version": "1", "label": "stable"}

    def __init__(self, process):
        self.process = process
        self.unavailable, self.delay, self.count = 0, 0.0, 0
        self._lock = threading.Lock()

    def predict(self, asked, inputs, signature):
        """(status, outputs or error) of a request for a model, a version, a label: `asked`."""
        time.sleep(self.delay)
        with self._lock:
            self.count += 1
            self.unavailable -= 1
            if self.unavailable >= 0:
                return 503, {"error": "Servable not yet available"}
            if not asked.items() <= self.known.items():
                return 404, {"error": f"Servable not found for request: {asked}"}
            outputs = self.process.predict(inputs, signature)
            return (400 if "error" in outputs else 200), outputs


@contextlib.contextmanager
def listening(handler):
    """A server of HTTP for a while; yields its URL."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def answering(answer, pause=0.0):
    """A server that sends the bytes of `answer(path, body)`, with a pause after each part."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            path = self.rfile.readline().split()[1].decode()
            size = http.client.parse_headers(self.rfile)["Content-Length"] or 0
            body = self.rfile.read(int(size))
            with contextlib.suppress(ConnectionError):  # a client that has given up
                for part in answer(path, body):
                    self.wfile.write(part)
                    time.sleep(pause)

    return listening(Handler)


def reply(body, status="200 OK", length=None):
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n{body}".encode()


def serving_rest(model):
    """Serves a model for a while; yields the URL."""

    def answer(path, body):
        if path == "/v1/models/toy":
            versions = [{"version": "1", "state": "AVAILABLE"}]
            return [reply(json.dumps({"model_version_status": versions}))]
        found, request = PATH.fullmatch(path), json.loads(body)
        if not found or "inputs" not in request:
            return [reply(json.dumps({"error": f"Malformed request: {path}"}), "400 Bad Request")]
        asked = {name: value for name, value in found.groupdict().items() if value}
        signature = request.get("signature_name", "serving_default")
        code, outputs = model.predict(asked, request["inputs"], signature)
        return [reply(json.dumps({"outputs": outputs} if code == 200 else outputs), f"{code} -")]

    return answering(answer)


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """On TF Serving's own stubs."""

    def __init__(self, model):
        self.model = model

    def Predict(self, request, context):
        spec = request.model_spec
        asked = {"name": spec.name}
        if spec.HasField("version"):
            asked["version"] = str(spec.version.value)
        if spec.version_label:
            asked["label"] = spec.version_label
        inputs = {key: tf.make_ndarray(tensor).tolist() for key, tensor in request.inputs.items()}
        code, outputs = self.model.predict(asked, inputs, spec.signature_name)
        if code != 200:
            context.abort(CODES[code], outputs["error"])
        reply = predict_pb2.PredictResponse()
        for key, (_, dtype) in SIGNATURES[spec.signature_name].outputs.items():
            values = np.array(outputs[key], dtype=object if dtype == "string" else None)
            reply.outputs[key].CopyFrom(tf.make_tensor_proto(values, tf.as_dtype(dtype)))
        return reply


@contextlib.contextmanager
def serving_grpc(service):
    """Serves a service for a while; yields its address."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
