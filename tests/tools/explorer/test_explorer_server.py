"""Who is answered and who is refused, over real connections, and what the answers say."""

import concurrent.futures
import http.client
import json
import shutil
import signal
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.tools.explorer.server import listen
from tests.support import child_process
from tests.support.command_line import run, sentences_before_tensorflow, shell_environment
from tests.support.paths import FIXTURES
from tests.tools.explorer.conftest import serving, serving_model

BEAM = SearchConfig(beam_size=5)
EXPORT = FIXTURES / "format-1" / "export" / "1"
RUN = FIXTURES / "format-1" / "run"


def send(explorer, method, name, body=None, path=None, **headers):
    """Status, headers and body of the answer to one request."""
    address = urllib.parse.urlsplit(explorer.address)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    try:
        whole = address.path + name if path is None else path
        connection.request(
            method, whole, body, {k.replace("_", "-"): v for k, v in headers.items()}
        )
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def ask(explorer, question, request=None, status=200, **headers):
    body = json.dumps(request or {})
    answer = send(
        explorer, "POST", f"ask/{question}", body, Content_Type="application/json", **headers
    )
    assert answer[0] == status, answer
    return json.loads(answer[2])


def port_of(explorer):
    return urllib.parse.urlsplit(explorer.address).port


def test_it_is_reached_from_this_machine_only(explorer):
    with open("/proc/net/tcp", encoding="ascii") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert f"0100007F:{port_of(explorer):04X}" in listening
    assert f"00000000:{port_of(explorer):04X}" not in listening


def test_the_page_takes_nothing_from_elsewhere(explorer):
    status, headers, body = send(explorer, "GET", "")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert b"//" not in body.replace(b"<!doctype", b"")
    for name in ("explorer.js", "explorer.css", "dom.js", "icon.svg"):
        status, _, body = send(explorer, "GET", name)
        assert status == 200 and b"innerHTML" not in body
        assert body.replace(b"http://www.w3.org/2000/svg", b"").count(b"http") == 0
    token = urllib.parse.urlsplit(explorer.address).path.strip("/")
    status, headers, _ = send(explorer, "GET", "", path=f"/{token}")
    assert (status, headers["Location"]) == (308, f"/{token}/")


@pytest.mark.parametrize(
    "path", ["/", "/index.html", "/wrong/", "/wrong/ask/model", "/%ff/", "//", "/ask/model"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_without_the_token_nothing_is_answered(explorer, method, path):
    status, _, body = send(explorer, method, "", path=path)
    assert status == 403 and b"token is missing" in body


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "[::1]"])
def test_another_host_is_refused(explorer, host):
    for method, name in (("GET", ""), ("POST", "ask/model")):
        status, _, body = send(explorer, method, name, Host=host)
        assert status == 403 and b"this machine only" in body


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{}", ""])
def test_another_origin_is_refused(explorer, origin):
    origin = origin.format(port_of(explorer))
    for method, name in (("GET", ""), ("POST", "ask/model")):
        status, _, body = send(explorer, method, name, Origin=origin)
        assert status == 403 and b"own page only" in body


def test_its_own_names_are_not(explorer):
    for name in ("localhost", "127.0.0.1"):
        host = f"{name}:{port_of(explorer)}"
        assert ask(explorer, "model", Host=host, Origin=f"http://{host}")["name"]


MISTAKES = {
    "no JSON": ("model", b"{", 400),
    "no object": ("model", b"[1]", 400),
    "no text": ("explore", b"{}", 400),
    "a number": ("explore", b'{"text": 5}', 400),
    "a long text": ("explore", json.dumps({"text": "a" * 10_001}).encode(), 400),
    "much": ("explore", b" " * 200_000, 413),
    "no ids": ("explore", b'{"text": "a", "prefix": ["a"]}', 400),
    "too many": ("explore", b'{"text": "a", "k": 21}', 400),
    "true": ("samples", b'{"text": "a", "temperature": true}', 400),
    "infinite": ("samples", b'{"text": "a", "temperature": 1e999}', 400),
    "nested": ("explore", b'{"text": ' + b"[" * 100_000, 400),
    "no UTF-8": ("explore", b'{"text": "\xff"}', 400),
    "many digits": ("explore", b'{"text": "a", "k": ' + b"9" * 5000 + b"}", 400),
    "another question": ("other", b"{}", 404),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(explorer, name):
    question, body, expected = MISTAKES[name]
    status, headers, answer = send(
        explorer, "POST", f"ask/{question}", body, Content_Type="application/json"
    )
    assert (status, list(json.loads(answer))) == (expected, ["error"])
    assert "Content-Security-Policy" in headers


def test_a_body_that_cannot_be_read(explorer):
    headers = {"Content_Type": "application/json", "Transfer_Encoding": "chunked"}
    status, _, answer = send(explorer, "POST", "ask/explore", b"zz\r\n", **headers)
    assert (status, list(json.loads(answer))) == (400, ["error"])


def test_a_model_that_fails_is_status_500_and_one_line_in_the_log(tmp_path, caplog):
    shutil.copytree(RUN, tmp_path / "run")
    with serving(tmp_path / "run") as explorer:
        (tmp_path / "run" / "model.keras").unlink()
        caplog.clear()
        answer = ask(explorer, "explore", {"text": "abc"}, 500)
    assert "is missing: restore it" in answer["error"]
    (record,) = caplog.records
    assert "is missing" in record.getMessage() and "\n" not in caplog.text.rstrip()


class Failing:
    """A model with a mistake in it."""

    questions = ("explore",)

    def answer(self, question, request):
        raise TypeError("two\nlines")


def test_an_unexpected_error_is_one_line_too(caplog):
    with serving_model(Failing()) as explorer:
        answer = ask(explorer, "explore", {"text": "abc"}, 500)
    assert "see its terminal" in answer["error"]
    (record,) = caplog.records
    assert "TypeError: two lines (test_explorer_server.py, line" in record.getMessage()
    assert record.exc_info is None


def test_methods_and_types(explorer):
    assert send(explorer, "GET", "ask/model")[0] == 415
    assert send(explorer, "POST", "ask/model", b"{}", Content_Type="text/plain")[0] == 415
    assert send(explorer, "GET", "../setup.cfg")[0] == 404
    assert send(explorer, "HEAD", "explorer.js")[2] == b""


def test_explore_returns_tokens_and_attention(explorer, word_translator):
    answer = ask(explorer, "explore", {"text": "one two three", "k": 4})
    assert answer["text"] == word_translator.translate(["one two three"])[0]
    assert answer["source"] == ["\u2581one", "\u2581two", "\u2581three", "</s>"]
    total = 0
    for step in answer["steps"]:
        assert len(step["best"]) == 4
        assert {key: step[key] for key in ("token", "id", "log_prob")} == step["best"][0]
        total += step["log_prob"]
    assert total == pytest.approx(answer["log_prob"], abs=1e-3)
    s, t = 4, len(answer["steps"])
    shapes = {kind: np.shape(maps) for kind, maps in answer["attention"].items()}
    assert shapes == {"encoder": (3, 2, s, s), "decoder": (3, 2, t, t), "cross": (3, 2, t, s)}


def test_variants_are_those_in_memory(explorer, word_translator):
    found = ask(explorer, "n-best", {"text": "two one"})["translations"]
    (expected,) = word_translator.translate_n_best(["two one"], search=BEAM)
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["score"] for one in found] == pytest.approx([x.score for x in expected], abs=1e-3)
    drawn = [
        ask(explorer, "samples", {"text": "two one", "temperature": 2.0, "seed": seed})
        for seed in (1, 1, 1000)
    ]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]["translations"]) == 5


def test_halves_of_characters_and_what_is_empty(explorer):
    assert ask(explorer, "explore", {"text": "one \ud800"})["text"]
    answer = ask(explorer, "explore", {"text": "  "})
    assert (answer["text"], answer["steps"], answer["log_prob"]) == ("", [], 0.0)


def test_two_sentences_at_once(explorer, word_translator):
    texts = ["one", "two three", "four four four", "three"] * 3
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        answers = pool.map(lambda text: ask(explorer, "explore", {"text": text}), texts)
    assert [answer["text"] for answer in answers] == word_translator.translate(texts)


def test_an_export_is_refused():
    with pytest.raises(ValueError, match="is a SavedModel, .* give the run directory"):
        with serving(EXPORT):
            pass


def test_a_run_answers_from_memory():
    from keras_transformer.runs.opening import load

    with serving(RUN) as explorer:
        assert ask(explorer, "model") == {"name": "run", "examples": []}
        answer = ask(explorer, "explore", {"text": "abc"})
        again = ask(explorer, "explore", {"text": "abc", "prefix": [9, answer["steps"][0]["id"]]})
        assert len(ask(explorer, "n-best", {"text": "abc"})["translations"]) == 5
        assert len(ask(explorer, "samples", {"text": "abc"})["translations"]) == 5
    assert answer["text"] == load(RUN).translate(["abc"])[0]
    assert [step["id"] for step in again["steps"]][:2] == [9, answer["steps"][0]["id"]]


def test_mistakes_of_the_command_come_before_tensorflow(tmp_path):
    with listen() as taken:
        port = str(taken.getsockname()[1])
        commands = [
            ["explore", "/none"],
            ["explore", tmp_path],
            ["explore", RUN, "--port", "70000"],
            ["explore", RUN, "--port", port],
        ]
        sentences = sentences_before_tensorflow(commands)
    ends = [
        "/none is not a directory",
        "is neither a run directory",
        "must be 0-65535",
        f"Port {port} cannot be",
    ]
    assert len(sentences) == 4
    for sentence, end in zip(sentences, ends, strict=True):
        assert sentence.startswith("keras-transformer: ") and end in sentence, sentence
    assert run("explore", RUN, "--port", "-1").returncode == 2


def test_the_command_prints_the_address_and_ends_when_interrupted():
    command = [sys.executable, "-m", "keras_transformer", "explore", str(RUN), "--no-browser"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with child_process.running(command, env=shell_environment(), **pipes) as process:
        address = process.stdout.readline().decode().strip()
        assert ask(_At(address), "explore", {"text": "abc"})["steps"]
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and output == b""
    assert errors.splitlines()[-1] == b"Press Ctrl-C to stop the explorer.", errors
    with pytest.raises(ConnectionRefusedError):
        send(_At(address), "GET", "")


class _At:
    """What has an address."""

    def __init__(self, address):
        self.address = address
