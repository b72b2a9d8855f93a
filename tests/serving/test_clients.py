"""The clients that are shipped, against servers that follow TF Serving's rules."""

import contextlib
import importlib.util
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from keras_transformer.serving.server_process import ServerProcess
from tests.support import child_process, grpc_stand_in, rest_stand_in
from tests.support.paths import EXPORT
from tests.support.toy_translator import SOURCES, trained_translator


def load(name):
    """Imports a client as its users would: from its file."""
    spec = importlib.util.spec_from_file_location(name, EXPORT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rest, grpc_module = load("client_rest"), load("client_grpc")
ERRORS = (rest.ClientError, grpc_module.ClientError)


@pytest.fixture(scope="module")
def process(toy_version):
    with ServerProcess(toy_version) as server:
        yield server


class Rest:
    """What the tests need of one of the two kinds."""

    script = "client_rest.py"
    address_option = "--url"

    def __init__(self, process):
        self.stand_in = rest_stand_in.RestStandIn(process)
        self.address = self.stand_in.url
        self.running = rest_stand_in.serving(self.stand_in)
        self.running.__enter__()

    def client(self, model="toy", **options):
        return rest.RestClient(self.address, model, **options)

    @property
    def count(self):
        return len(self.stand_in.requests)

    def stop(self):
        self.running.__exit__(None, None, None)


class Grpc:
    script = "client_grpc.py"
    address_option = "--address"

    def __init__(self, process):
        self.stand_in = grpc_stand_in.GrpcStandIn(process)
        self.running = grpc_stand_in.serving(self.stand_in)
        self.address = self.running.__enter__()

    def client(self, model="toy", **options):
        return grpc_module.GrpcClient(self.address, model, **options)

    @property
    def count(self):
        return self.stand_in.count

    def stop(self):
        self.running.__exit__(None, None, None)


@pytest.fixture(params=[Rest, Grpc], ids=["rest", "grpc"])
def kind(request, process):
    kind = request.param(process)
    yield kind
    kind.stop()


def test_translations_are_the_models(kind):
    texts = [*SOURCES, "\u6771\u4eac", b"\xff\x00"]
    found = kind.client().translate(texts)
    assert found[: len(SOURCES)] == trained_translator().translate(SOURCES)
    assert len(found) == len(texts) and all(isinstance(text, str) for text in found)
    assert kind.client().translate([]) == [] and kind.count == 1


@pytest.mark.parametrize("options", [{"version": 1}, {"label": "stable"}])
def test_version_and_label(kind, options):
    assert kind.client(**options).translate(["abc"]) == trained_translator().translate(["abc"])


def test_other_signatures(kind):
    reply = kind.client().predict({"text": ["abc", "hg"]}, "beam")
    assert np.shape(reply["text"]) == np.shape(reply["log_prob"]) == (2, 5)
    inputs = {
        "text": ["abc"],
        "temperature": np.array([0.5], np.float32),
        "top_k": np.array([2], np.int32),
        "top_p": np.array([0.9], np.float32),
        "seed": np.array([5], np.int64),
    }
    if kind.script == "client_rest.py":
        inputs = {key: list(np.array(value).tolist()) for key, value in inputs.items()}
    assert len(kind.client().predict(inputs, "sample")["text"]) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"model": "other"}, "(404|NOT_FOUND): Servable not found"),
        ({"version": 7}, "(404|NOT_FOUND): Servable not found"),
        ({"label": "canary"}, "(404|NOT_FOUND): Servable not found"),
    ],
)
def test_what_is_not_there(kind, options, message):
    with pytest.raises(ERRORS, match=message) as error:
        kind.client(**options).translate(["abc"])
    assert "\n" not in str(error.value) and kind.count == 1  # not tried again


def test_request_that_does_not_fit(kind):
    with pytest.raises(ERRORS, match="(400|INVALID_ARGUMENT): Expected the inputs .'text'."):
        kind.client().predict({"texts": ["abc"]})
    with pytest.raises(ERRORS, match="(400|INVALID_ARGUMENT): Unknown signature x"):
        kind.client().predict({"text": ["abc"]}, "x")
    assert kind.count == 2  # not tried again


def test_unavailable_server_is_asked_again(kind):
    kind.stand_in.unavailable = 2
    assert kind.client().translate(["abc"]) == trained_translator().translate(["abc"])
    assert kind.count == 3


def test_patience_with_an_unavailable_server_ends(kind):
    kind.stand_in.unavailable = 100
    with pytest.raises(ERRORS, match=r"unavailable: .*not yet available \(tried 3 times\)"):
        kind.client(retries=2).translate(["abc"])
    assert kind.count == 3
    started = time.monotonic()
    with pytest.raises(ERRORS, match="unavailable"):
        kind.client(retries=50, timeout=0.5).translate(["abc"])
    assert time.monotonic() - started < 5


def test_slow_server(kind):
    kind.stand_in.delay = 1.0
    with pytest.raises(ERRORS, match="did not answer within 0.3 seconds"):
        kind.client(timeout=0.3).translate(["abc"])
    time.sleep(1.2)
    assert kind.count == 1  # not tried again


def test_several_servers_are_asked_in_turn(process):
    """As a headless Service's name stands for several pods."""
    with contextlib.ExitStack() as stack:
        servers = [grpc_stand_in.GrpcStandIn(process) for _ in range(2)]
        addresses = [stack.enter_context(grpc_stand_in.serving(server)) for server in servers]
        client = grpc_module.GrpcClient(f"ipv4:{','.join(addresses)}", "toy")
        stack.enter_context(client)
        for _ in range(50):  # until it is connected to both
            client.translate(["abc"])
            if all(server.count for server in servers):
                break
        before = [server.count for server in servers]
        for _ in range(6):
            client.translate(["abc"])
        assert [server.count for server in servers] == [count + 3 for count in before]
        servers[0].unavailable = 1  # the next one is asked instead
        for _ in range(2):
            assert client.translate(["abc"]) == trained_translator().translate(["abc"])


def test_address_by_dns(process):
    with grpc_stand_in.serving(grpc_stand_in.GrpcStandIn(process)) as address:
        port = address.rpartition(":")[2]
        with grpc_module.GrpcClient(f"dns:///localhost:{port}", "toy") as client:
            assert client.translate(["abc"]) == trained_translator().translate(["abc"])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(script, *arguments, text=b""):
    command = [sys.executable, str(EXPORT / script), *arguments]
    return child_process.run(command, input=text, capture_output=True)


def test_command_line(kind):
    text = "\n".join([*SOURCES, "\ud83d\ude42".encode("utf-16", "surrogatepass").decode("utf-16")])
    options = [kind.address_option, kind.address, "--model", "toy", "--batch-size", "4"]
    done = run(kind.script, *options, text=text.encode() + b"\r\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().split("\n")
    expected = [" ".join(x.splitlines()) for x in trained_translator().translate(SOURCES)]
    assert lines[: len(SOURCES)] == expected and len(lines) == len(SOURCES) + 2
    assert kind.count == 3  # eleven lines, four at a time


@pytest.mark.parametrize(
    "script, option", [("client_rest.py", "--url"), ("client_grpc.py", "--address")]
)
def test_dead_server_is_one_sentence(script, option):
    address = f"127.0.0.1:{free_port()}"
    address = f"http://{address}" if option == "--url" else address
    done = run(script, option, address, "--model", "toy", "--retries", "1", text=b"abc\n")
    assert done.returncode == 1 and not done.stdout
    message = done.stderr.decode().strip().splitlines()[-1]
    assert message.startswith(f"{script}: ") and "(tried 2 times)" in message
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["client_rest.py", "client_grpc.py"])
def test_mistakes_at_the_command_line(script):
    done = run(script, "--model", "toy", "--batch-size", "0")
    assert done.returncode == 2 and b"must be at least 1, received 0" in done.stderr
    done = run(script, "--model", "toy", "--version", "1", "--label", "stable")
    assert done.returncode == 2 and b"cannot be used together" in done.stderr


@pytest.mark.parametrize("url", ["localhost:8501", "http://", "http://[::1", "http://a:b"])
def test_no_url(url):
    with pytest.raises(rest.ClientError, match="Expected a URL such as"):
        rest.RestClient(url, "toy")


def test_server_that_is_none():
    """Something listens that does not speak HTTP."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(rest.ClientError, match="did not answer within"):
            rest.RestClient(url, "toy", timeout=0.3, retries=0).translate(["abc"])


@contextlib.contextmanager
def answering(*chunks, pause=0.0):
    """A server that answers every request with these bytes, some at a time; yields its URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            with contextlib.suppress(ConnectionError):
                header = iter(self.rfile.readline, b"\r\n")
                (size,) = [x.partition(b":")[2] for x in header if x.startswith(b"Content-Length")]
                self.rfile.read(int(size))
                for chunk in chunks:
                    self.wfile.write(chunk)
                    time.sleep(pause)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def reply(body, status="200 OK", length=None):
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n{body}".encode()


GATEWAY = f"<html><h1>502 Bad Gateway</h1>{'<p>' * 1000}</html>"
OTHER_ANSWERS = {
    "a page": (reply(GATEWAY, "502 Bad Gateway"), "The server answered 502: <html>.*…"),
    "half a page": (reply(GATEWAY, "502 Bad Gateway", 9000), "broke the connection off"),
    "elsewhere": (reply("", "302 Found\r\nLocation: /login"), "answered 302: no reason given"),
    "by rows": (reply('{"predictions": ["x"]}'), 'whose "outputs" is a dict, received .*predict'),
    "one output": (reply('{"outputs": ["x"]}'), 'whose "outputs" is a dict'),
    "a list": (reply("[1]"), r'whose "outputs" is a dict, received \[1\]'),
    "no JSON": (reply("<html>"), "did not answer with JSON: <html>"),
    "nested": (reply("[" * 100_000), r"did not answer with JSON: \[+…"),
    "half of it": (reply('{"outputs": {"te', length=99), "broke the connection off: Incomplete"),
    "nothing": (b"", "broke the connection off: RemoteDisconnected"),
    "another protocol": (b"220 ESMTP\r\n", "broke the connection off: BadStatusLine"),
    "another model": (reply('{"outputs": {"y": [0.5]}}'), "expected 1 strings .* received None"),
    "numbers": (reply('{"outputs": {"text": [0.5]}}'), r"expected 1 strings .* received \[0.5\]"),
    "too many": (reply('{"outputs": {"text": ["a", "b"]}}'), "expected 1 strings"),
}


@pytest.mark.parametrize("name", OTHER_ANSWERS)
def test_answer_of_another_form_is_one_sentence(name):
    answer, message = OTHER_ANSWERS[name]
    with answering(answer) as url:
        with pytest.raises(rest.ClientError, match=message) as error:
            rest.RestClient(url, "toy").translate(["abc"])
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("start", [0, len(reply("")) - 4], ids=["header", "body"])
def test_timeout_is_for_the_whole_answer(start):
    answer = reply('{"outputs": {"text": ["ABC"]}}')
    drops = [answer[:start], *(answer[i : i + 1] for i in range(start, len(answer)))]
    started = time.monotonic()
    with answering(*drops, pause=0.1) as url:
        with pytest.raises(rest.ClientError, match="did not answer within 0.5 seconds"):
            rest.RestClient(url, "toy", timeout=0.5).translate(["abc"])
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("outputs", [{}, {"y": [b"a"]}, {"text": [0.5]}, {"text": [b"a", b"b"]}])
def test_another_model_over_grpc(outputs):
    class OtherModel(grpc_stand_in.GrpcStandIn):
        def Predict(self, request, context):
            tensors = {key: tf.make_tensor_proto(values) for key, values in outputs.items()}
            return predict_pb2.PredictResponse(outputs=tensors)

    with grpc_stand_in.serving(OtherModel(None)) as address:
        with grpc_module.GrpcClient(address, "toy") as client:
            with pytest.raises(grpc_module.ClientError, match="is not a translator: expected 1"):
                client.translate(["abc"])


def test_reader_that_ends_early(kind):
    options = [kind.address_option, kind.address, "--model", "toy"]
    command = [sys.executable, str(EXPORT / kind.script), *options]
    read, write = os.pipe()
    os.close(read)
    done = child_process.run(
        command, input=b"abc\n", stdout=write, stderr=subprocess.PIPE, timeout=120
    )
    os.close(write)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_timeout_that_is_none(kind, timeout):
    with pytest.raises(ERRORS, match="timeout must be a positive number of seconds, received"):
        kind.client(timeout=timeout)


def test_status(process):
    with rest_stand_in.serving(rest_stand_in.RestStandIn(process)) as stand_in:
        status = rest.RestClient(stand_in.url, "toy").status()
        assert status["model_version_status"][0]["state"] == "AVAILABLE"
