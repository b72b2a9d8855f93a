"""Servers that answer by TF Serving's rules, as far as clients can tell, over REST and over gRPC.

The model runs in TensorFlow's C++ loader; paths, bodies, status codes and error objects follow what
was recorded of TF Serving (model_servers/http_rest_api_handler.cc, util/json_tensor.cc,
servables/tensorflow/predict_util.cc).
"""

import contextlib
import http.server
import json
import re
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from keras_transformer.serving.versions import SIGNATURES

PATH = "/v1/models/(?P<name>[^/:]+)(/versions/(?P<version>\\d+)|/labels/(?P<label>[^/:]+))?:predict"
CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 503: "UNAVAILABLE"}


class Model:
    """Version 1, labelled stable, of a model, which a `ServerProcess` computes.

    It counts requests, of which as many as are `unavailable` are answered with 503, each after a
    `delay` in seconds; the last one by REST is `request`, which a notebook shows.
    """

    def __init__(self, process, name="toy"):
        self.process, self._lock = process, threading.Lock()
        self.known = {"name": name, "version": "1", "label": "stable"}
        self.unavailable, self.delay, self.count = 0, 0.0, 0

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
def serving_http(handler):
    """Yields the URL of a server of the standard library."""
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), quiet) as server:
        server.handle_error = lambda *_: None  # a client that has given up
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def serving_rest(model):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(200, {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]})

        def do_POST(self):
            asked = re.fullmatch(PATH, self.path).groupdict()
            asked = {key: value for key, value in asked.items() if value}
            model.request = self.rfile.read(int(self.headers["Content-Length"])).decode()
            request = json.loads(model.request)
            signature = request.get("signature_name", "serving_default")
            code, reply = model.predict(asked, request["inputs"], signature)
            self.answer(code, {"outputs": reply} if code == 200 else reply)

        def answer(self, code, reply):
            body = json.dumps(reply).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return serving_http(Handler)


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model):
        self.model = model

    def Predict(self, request, context):
        spec = request.model_spec
        asked = {"name": spec.name}
        if spec.HasField("version"):
            asked["version"] = str(spec.version.value)
        if spec.version_label:
            asked["label"] = spec.version_label
        name = spec.signature_name or "serving_default"
        inputs = {key: tf.make_ndarray(tensor).tolist() for key, tensor in request.inputs.items()}
        code, outputs = self.model.predict(asked, inputs, name)
        if code != 200:
            context.abort(grpc.StatusCode[CODES[code]], outputs["error"])
        reply = predict_pb2.PredictResponse()
        for key, (_, dtype) in SIGNATURES[name].outputs.items():
            values = np.array(outputs[key], dtype=object if dtype == "string" else None)
            reply.outputs[key].CopyFrom(tf.make_tensor_proto(values, tf.as_dtype(dtype)))
        return reply


@contextlib.contextmanager
def serving_grpc(service):
    server = grpc.server(futures.ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
