"""A REST server that answers by TF Serving's rules, as far as clients can tell.

The model runs in TensorFlow's C++ loader; paths, bodies, status codes and error objects follow
what was recorded of TF Serving (model_servers/http_rest_api_handler.cc, util/json_tensor.cc).
"""

import contextlib
import http.server
import json
import re
import threading
import time

PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
    r"(?P<predict>:predict)?"
)


class RestStandIn(http.server.ThreadingHTTPServer):
    """Serves one version of one model.

    Args:
        process: `ServerProcess`, or None where no prediction is asked for.
        name, version, label: what clients may ask for.

    Attributes:
        unavailable: number of requests still to be answered with 503.
        delay: seconds before an answer.
        requests: the bodies received.
    """

    def __init__(self, process=None, name="toy", version=1, label="stable"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.process = process
        self.known = {"name": name, "version": str(version), "label": label}
        self.unavailable = 0
        self.delay = 0.0
        self.requests = []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that has given up is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code, reply = self._find(predict=False)
        state = {"version": self.server.known["version"], "state": "AVAILABLE"}
        self._answer(code or 200, reply or {"model_version_status": [state]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay)
        with self.server.lock:
            self.server.requests.append(body)
            self.server.unavailable -= 1
            unavailable = self.server.unavailable >= 0
        if unavailable:
            return self._answer(503, {"error": "Servable not yet available"})
        code, reply = self._find(predict=True)
        if not code:
            with self.server.lock:
                code, reply = self._predict(body)
        return self._answer(code, reply)

    def _find(self, predict):
        """The error of a path that leads nowhere."""
        found = PATH.fullmatch(self.path)
        if not found or bool(found["predict"]) != predict:
            return 400, {"error": f"Malformed request: {self.command} {self.path}"}
        for key, value in found.groupdict().items():
            if key != "predict" and value not in (None, self.server.known[key]):
                return 404, {"error": f"Servable not found for request: Specific({self.path})"}
        return None, None

    def _predict(self, body):
        try:
            request = json.loads(body)
        except ValueError:
            return 400, {"error": "JSON Parse error: Invalid value. at offset: 0"}
        if ("inputs" in request) == ("instances" in request):
            return 400, {"error": "Missing 'inputs' or 'instances' key"}
        outputs = self.server.process.predict(
            request["inputs"], request.get("signature_name", "serving_default")
        )
        return (400, outputs) if "error" in outputs else (200, {"outputs": outputs})

    def _answer(self, code, reply):
        body = json.dumps(reply).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(stand_in):
    """Runs a stand-in for a while."""
    thread = threading.Thread(target=stand_in.serve_forever, daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.shutdown()
        stand_in.server_close()
        thread.join()
