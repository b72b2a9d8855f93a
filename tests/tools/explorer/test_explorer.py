"""Who is answered and who is refused, over real connections; and the command."""

import concurrent.futures
import json
import signal
import subprocess
import types
import urllib.parse

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.runs.opening import Opened, load
from keras_transformer.tools.explorer.server import ExploredRun, listen
from tests.support.command_line import refused, run, sentences_before_tensorflow, started
from tests.support.paths import FIXTURES
from tests.tools.explorer.conftest import ask, send, serving_model

EXPORT, RUN = FIXTURES / "format-1" / "export" / "1", FIXTURES / "format-1" / "run"


def test_it_is_reached_from_this_machine_only(explorer):
    with open("/proc/net/tcp", encoding="ascii") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    port = urllib.parse.urlsplit(explorer.address).port
    assert f"0100007F:{port:04X}" in listening and f"00000000:{port:04X}" not in listening


def test_the_page_takes_nothing_from_elsewhere(explorer):
    status, headers, body = send(explorer.address, "GET", "")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
    assert b"//" not in body.replace(b"<!doctype", b"")
    for name in ("explorer.js", "explorer.css", "dom.js", "icon.svg"):
        status, _, body = send(explorer.address, "GET", name)
        assert status == 200 and b"innerHTML" not in body
        assert b"http" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    token = urllib.parse.urlsplit(explorer.address).path.strip("/")
    status, headers, _ = send(explorer.address, "GET", "", path=f"/{token}")
    assert (status, headers["Location"]) == (308, f"/{token}/")


@pytest.mark.parametrize("path", ["/", "/wrong/ask/model", "/%ff/", "//", "/ask/model"])
def test_without_the_token_nothing_is_answered(explorer, path):
    for method in ("GET", "POST", "PUT"):
        status, _, body = send(explorer.address, method, "", path=path)
        assert status == 403 and b"token is missing" in body


def test_another_host_or_origin_is_refused(explorer):
    port = urllib.parse.urlsplit(explorer.address).port
    origins = "http://evil.example", "null", f"https://127.0.0.1:{port}", ""
    wrong = [({"Host": x}, b"this machine only") for x in ("evil.example", "127.0.0.1:1", "")]
    wrong += [({"Origin": x}, b"own page only") for x in origins]
    for headers, sentence in wrong:
        for method, name in (("GET", ""), ("POST", "ask/model")):
            status, _, body = send(explorer.address, method, name, **headers)
            assert status == 403 and sentence in body, headers
    for name in ("localhost", "127.0.0.1"):
        host = f"{name}:{port}"
        assert ask(explorer, "model", Host=host, Origin=f"http://{host}")["name"]


def test_a_mistake_is_one_sentence(explorer):
    address, kind = explorer.address, {"Content_Type": "application/json"}
    for question, body, expected in (
        ("model", b"[1]", 400),
        ("explore", b'{"text": "\xff"}', 400),
        ("explore", b'{"text": 5}', 400),
        ("explore", json.dumps({"text": "a" * 10_001}).encode(), 400),
        ("explore", b" " * 200_000, 413),
        ("explore", b'{"text": "a", "prefix": ["a"]}', 400),
        ("explore", b'{"text": "a", "prefix": [12]}', 400),
        ("explore", b'{"text": "a", "k": 21}', 400),
        ("samples", b'{"text": "a", "temperature": true}', 400),
        ("explore", b'{"text": ' + b"[" * 100_000, 400),
        ("other", b"{}", 404),
    ):
        status, headers, answer = send(address, "POST", f"ask/{question}", body, **kind)
        assert (status, list(json.loads(answer))) == (expected, ["error"]), body[:99]
        assert "Content-Security-Policy" in headers
    chunked = kind | {"Transfer_Encoding": "chunked"}
    assert send(address, "POST", "ask/explore", b"zz\r\n", **chunked)[0] == 400
    assert send(address, "POST", "ask/model", b"{}", Content_Type="text/plain")[0] == 415
    assert send(address, "GET", "ask/model")[0] == 415
    assert send(address, "GET", "../setup.cfg")[0] == 404


def test_failures_are_status_500_and_one_line_in_the_log(caplog):
    def fail(question, request):
        raise TypeError("two\nlines")

    with serving_model(types.SimpleNamespace(questions=("explore",), answer=fail)) as explorer:
        answer = ask(explorer, "explore", {"text": "abc"}, 500)
    assert "see its terminal" in answer["error"]
    (record,) = caplog.records
    assert "TypeError: two lines (test_explorer.py, line" in record.getMessage()
    assert record.exc_info is None


def test_explore_returns_tokens_and_attention(explorer, word_translator):
    answer = ask(explorer, "explore", {"text": "one two three", "k": 4})
    assert answer["text"] == word_translator.translate(["one two three"])[0]
    assert answer["source"] == ["\u2581one", "\u2581two", "\u2581three", "</s>"]
    total = 0
    for step in answer["steps"]:
        best, *others = step.pop("best")
        assert step == best and len(others) == 3
        total += step["log_prob"]
    assert total == pytest.approx(answer["log_prob"], abs=1e-3)
    s, t = 4, len(answer["steps"])
    shapes = {kind: np.shape(maps) for kind, maps in answer["attention"].items()}
    assert shapes == {"encoder": (3, 2, s, s), "decoder": (3, 2, t, t), "cross": (3, 2, t, s)}
    assert ask(explorer, "explore", {"text": "one \ud800"})["text"]
    answer = ask(explorer, "explore", {"text": "  "})
    assert (answer["text"], answer["steps"], answer["log_prob"]) == ("", [], 0.0)


def test_variants_are_those_in_memory(explorer, word_translator):
    found = ask(explorer, "n-best", {"text": "two one"})["translations"]
    (expected,) = word_translator.translate_n_best(["two one"], search=SearchConfig(beam_size=5))
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["score"] for one in found] == pytest.approx([x.score for x in expected], abs=1e-3)
    asked = {"text": "two one", "temperature": 2.0}
    drawn = [ask(explorer, "samples", asked | {"seed": seed}) for seed in (1, 1, 1000)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]["translations"]) == 5


def test_several_sentences_at_once(explorer, word_translator):
    sentences = ["one", "two three", "four four four", "three"] * 3
    with concurrent.futures.ThreadPoolExecutor(len(sentences)) as pool:
        answers = pool.map(lambda text: ask(explorer, "explore", {"text": text}), sentences)
    assert [answer["text"] for answer in answers] == word_translator.translate(sentences)


def test_mistakes_of_the_command_come_before_tensorflow(tmp_path):
    with listen() as taken:
        port = str(taken.getsockname()[1])
        commands = [["/none"], [tmp_path], [RUN, "--port", "70000"], [RUN, "--port", port]]
        sentences = sentences_before_tensorflow([["explore", *words] for words in commands])
    expected = ["/none is not a directory", "is neither a run directory", "must be 0-65535"]
    for sentence, message in zip(sentences, [*expected, f"Port {port} cannot be"], strict=True):
        assert sentence.startswith("keras-transformer: ") and message in sentence, sentence
    assert run("explore", RUN, "--port", "-1").returncode == 2
    refused(["explore", EXPORT], "is a SavedModel: give the run")
    with pytest.raises(ValueError, match="is a SavedModel, which does not return all attention"):
        ExploredRun(Opened(EXPORT))


def test_the_command_prints_the_address_and_ends_when_interrupted():
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with started("explore", RUN, "--no-browser", **pipes) as process:
        address = process.stdout.readline().decode().strip()
        explorer = types.SimpleNamespace(address=address)
        assert ask(explorer, "model") == {"name": "run", "examples": []}
        answer = ask(explorer, "explore", {"text": "abc"})
        again = ask(explorer, "explore", {"text": "abc", "prefix": [9, answer["steps"][0]["id"]]})
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert answer["text"] == load(RUN).translate(["abc"])[0]
    assert [step["id"] for step in again["steps"]][:2] == [9, answer["steps"][0]["id"]]
    assert process.returncode == 0 and output == b""
    assert errors.splitlines()[-1] == b"Press Ctrl-C to stop the explorer.", errors
    with pytest.raises(ConnectionRefusedError):
        send(address, "GET", "")
