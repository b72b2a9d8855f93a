"""The clients that are shipped, against servers that follow TF Serving's rules."""

import functools
import http.server
import importlib.util
import io
import os
import socket
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.support import child_process, server_stand_ins
from tests.support.paths import EXPORT
from tests.support.toy_translator import SOURCES


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXPORT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


rest, grpc_module = load("client_rest"), load("client_grpc")
ERRORS = (rest.ClientError, grpc_module.ClientError)


@pytest.fixture(params=["rest", "grpc"])
def kind(request, server):
    model = server_stand_ins.Model(server)
    found = types.SimpleNamespace(model=model, module=rest, make=rest.RestClient, option="--url")
    serving = server_stand_ins.serving_rest(model)
    if request.param == "grpc":
        found.module, found.make, found.option = grpc_module, grpc_module.GrpcClient, "--address"
        serving = server_stand_ins.serving_grpc(server_stand_ins.Service(model))
    with serving as address:
        found.client = functools.partial(found.make, address, model="toy")
        found.options = [found.option, address]
        yield found


def test_translations_are_the_models(kind, translator):
    texts, expected = [*SOURCES, "\u6771\u4eac", b"\xff\x00"], translator.translate(SOURCES)
    found = kind.client().translate(texts)
    assert found[: len(SOURCES)] == expected
    assert len(found) == len(texts) and all(isinstance(text, str) for text in found)
    assert kind.client().translate([]) == [] and kind.model.count == 1
    for options in ({"version": 1}, {"label": "stable"}):
        assert kind.client(**options).translate(["abc"]) == expected[:1]


def test_other_signatures(kind):
    reply = kind.client().predict({"text": ["abc", "hg"]}, "beam")
    assert np.shape(reply["text"]) == np.shape(reply["log_prob"]) == (2, 5)
    values = {"temperature": np.float32(0.5), "top_k": np.int32(2), "top_p": np.float32(0.9)}
    inputs = {key: np.array([value]) for key, value in values.items()} | {"seed": np.array([5])}
    if kind.module is rest:
        inputs = {key: value.tolist() for key, value in inputs.items()}
    assert len(kind.client().predict({"text": ["abc"], **inputs}, "sample")["text"]) == 1


def test_what_fails_is_not_tried_again(kind):
    for options in ({"model": "other"}, {"version": 7}, {"label": "canary"}):
        with pytest.raises(ERRORS, match="(404|NOT_FOUND): Servable not found") as error:
            kind.client(**options).translate(["abc"])
        assert "\n" not in str(error.value)
    with pytest.raises(ERRORS, match="(400|INVALID_ARGUMENT): Expected the inputs .'text'."):
        kind.client().predict({"texts": ["abc"]})
    assert kind.model.count == 4
    kind.model.delay = 0.5
    with pytest.raises(ERRORS, match="did not answer within 0.2 seconds"):
        kind.client(timeout=0.2).translate(["abc"])
    time.sleep(0.6)
    assert kind.model.count == 5
    for timeout in (0, float("nan"), float("inf")):
        with pytest.raises(ERRORS, match="timeout must be a positive number of seconds, received"):
            kind.client(timeout=timeout)


def test_unavailable_server_is_asked_again(kind, translator):
    kind.model.unavailable = 2
    assert kind.client().translate(["abc"]) == translator.translate(["abc"])
    assert kind.model.count == 3
    kind.model.unavailable = 100
    with pytest.raises(ERRORS, match=r"unavailable: .*not yet available \(tried 2 times\)"):
        kind.client(retries=1).translate(["abc"])
    assert kind.model.count == 5
    with pytest.raises(ERRORS, match="unavailable"):
        kind.client(retries=50, timeout=0.3).translate(["abc"])


def test_several_servers_are_asked_in_turn(server, translator):
    models, expected = [server_stand_ins.Model(server) for _ in "12"], translator.translate(["abc"])
    one, other = (server_stand_ins.serving_grpc(server_stand_ins.Service(x)) for x in models)
    with one as a, other as b, grpc_module.GrpcClient(f"ipv4:{a},{b}", "toy") as client:
        for _ in range(50):  # until it is connected to both
            client.translate(["abc"])
            if all(model.count for model in models):
                break
        before = [model.count for model in models]
        for _ in range(6):
            client.translate(["abc"])
        assert [model.count for model in models] == [count + 3 for count in before]
        models[0].unavailable = 1  # the next one is asked instead
        assert [client.translate(["abc"]) for _ in range(2)] == [expected] * 2


def run(kind, monkeypatch, *arguments, text=b""):
    monkeypatch.setattr("sys.argv", ["client", "--model", "toy", *arguments])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    with pytest.raises(SystemExit) as end:
        sys.exit(kind.module.main())
    return end.value.code or 0


def test_command_line(kind, translator, monkeypatch, capsys):
    text = "\n".join([*SOURCES, "\U0001f642"]).encode() + b"\r\n"
    assert run(kind, monkeypatch, *kind.options, "--batch-size", "4", text=text) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == len(SOURCES) + 2
    expected = [" ".join(x.splitlines()) for x in translator.translate(SOURCES)]
    assert lines[: len(SOURCES)] == expected
    assert kind.model.count == 3  # eleven lines, four at a time


def test_mistakes_at_the_command_line(kind, monkeypatch, capsys):
    for words, message in (
        ("--batch-size 0", "must be at least 1, received 0"),
        ("--version 1 --label stable", "cannot be used together"),
    ):
        assert run(kind, monkeypatch, *words.split()) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["rest"], indirect=True)
def test_a_program_on_its_own(kind):
    """A dead server is one sentence; a reader that ends early, none."""
    command = [sys.executable, EXPORT / "client_rest.py", "--model", "toy", "--retries", "1"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{listener.getsockname()[1]}"
    done = child_process.run([*command, "--url", dead], input=b"abc\n", capture_output=True)
    assert done.returncode == 1 and not done.stdout
    (message,) = done.stderr.decode().strip().splitlines()
    assert message.startswith("client_rest.py: ") and "(tried 2 times)" in message
    read, write = os.pipe()
    os.close(read)
    pipes = dict(stdout=write, stderr=subprocess.PIPE)
    done = child_process.run([*command, *kind.options], input=b"abc\n", **pipes)
    os.close(write)
    assert done.returncode == 0 and not done.stderr


def answering(*chunks, pause=0.0):
    """A server that answers every request with these bytes, some at a time."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            for chunk in chunks:
                self.wfile.write(chunk)
                time.sleep(pause)

    return server_stand_ins.serving_http(Handler)


def reply(body, status="200 OK", length=None):
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n\r\n{body}".encode()


def test_answer_of_another_form_is_one_sentence():
    gateway = f"<html><h1>502 Bad Gateway</h1>{'<p>' * 1000}</html>"
    for answer, message in (
        (reply(gateway, "502 Bad Gateway"), "The server answered 502: <html>.*…"),
        (reply("", "302 Found\r\nLocation: /login"), "answered 302: no reason given"),
        (reply("[1]"), r'whose "outputs" is a dict, received \[1\]'),
        (reply("[" * 100_000), r"did not answer with JSON: \[+…"),
        (reply('{"outputs": {"te', length=99), "broke the connection off: Incomplete"),
        (b"", "broke the connection off: RemoteDisconnected"),
        (reply('{"outputs": {"y": [0.5]}}'), "expected 1 strings .* received None"),
    ):
        with answering(answer) as url, pytest.raises(rest.ClientError, match=message) as error:
            rest.RestClient(url, "toy").translate(["abc"])
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_timeout_is_for_the_whole_answer():
    answer = reply('{"outputs": {"text": ["ABC"]}}')
    with answering(answer[:50], *(bytes([byte]) for byte in answer[50:]), pause=0.1) as url:
        with pytest.raises(rest.ClientError, match="did not answer within 0.5 seconds"):
            rest.RestClient(url, "toy", timeout=0.5).translate(["abc"])


def test_another_model_over_grpc():
    answers = [{}, {"text": [0.5]}, {"text": [b"a", b"b"]}]

    class Other(server_stand_ins.Service):
        def Predict(self, request, context):
            tensors = {key: tf.make_tensor_proto(x) for key, x in answers.pop().items()}
            return predict_pb2.PredictResponse(outputs=tensors)

    with server_stand_ins.serving_grpc(Other(None)) as address:
        with grpc_module.GrpcClient(address, "toy") as client:
            while answers:
                with pytest.raises(grpc_module.ClientError, match="is not a translator: expected"):
                    client.translate(["abc"])


def test_status_and_urls_that_are_none():
    with server_stand_ins.serving_rest(None) as url:
        (status,) = rest.RestClient(url, "toy").status()["model_version_status"]
        assert status["state"] == "AVAILABLE"
    for url in ("localhost:8501", "http://", "ftp://localhost", "http://a:b"):
        with pytest.raises(rest.ClientError, match="Expected a URL such as"):
            rest.RestClient(url, "toy")
