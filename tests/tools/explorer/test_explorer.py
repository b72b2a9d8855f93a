"""Who is answered and who is refused, over real connections; and the page in a real browser."""

import concurrent.futures
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.parse

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.runs.opening import Opened, load
from keras_transformer.runs.run import Run
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tools.explorer.server import ExploredRun, ExplorerServer, listen
from tests.support import child_process
from tests.support.command_line import run, sentences_before_tensorflow, shell_environment
from tests.support.paths import FIXTURES
from tests.support.toy_translator import random_translator, without_graphs
from tests.tools.explorer.conftest import (
    contents,
    every,
    one,
    open_browser,
    press,
    texts,
    until,
    write,
)

BEAM = SearchConfig(beam_size=5)
EXPORT = FIXTURES / "format-1" / "export" / "1"
RUN = FIXTURES / "format-1" / "run"
# A run whose vocabulary has words that would do harm if read as HTML.
HOSTILE = ("<img/src=x/onerror=document.title='hacked'>", "<script>document.title=1</script>")
WORDS = ("one", "two", "three", "four", "\u0645\u0631\u062d\u0628\u0627", "\u4eca\u65e5", *HOSTILE)


@pytest.fixture(scope="module")
def word_translator():
    """Random weights; each word is a piece."""
    lines = [" ".join(WORDS)] * 9
    tokenizer = SubwordTokenizer.train(lines, vocabulary_size=4 + len(WORDS), model_type="word")
    return without_graphs(random_translator(tokenizer, num_layers=3, max_length=24, seed=5))


@contextlib.contextmanager
def serving_model(model):
    """The explorer's page of a model while a thread serves it."""
    with listen() as listening:
        explorer = ExplorerServer(model, listening)
        thread = threading.Thread(target=explorer.run, args=(False,))
        thread.start()
        try:
            yield explorer
        finally:
            explorer.server.shutdown()
            thread.join()


EXAMPLES = ("four two", " ", "one", "four two", "two", "three", "one two")


@pytest.fixture(scope="module")
def explored_run(word_translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("explored") / "<b>base"
    path.mkdir()
    saved.write(path, [word_translator.source_tokenizer, word_translator.target_tokenizer])
    Run(path).write_model(word_translator.model, {})
    Run(path).write_examples([(source, "") for source in EXAMPLES])
    return path


@pytest.fixture(scope="module")
def explorer(explored_run):
    with serving_model(ExploredRun(Opened(explored_run))) as server:
        yield server


def send(address, method, name, body=None, path=None, **headers):
    """Status, headers and body of the answer to one request."""
    address = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    try:
        connection.request(method, address.path + name if path is None else path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def ask(explorer, question, request=None, status=200, **headers):
    """The answer to a request of the page."""
    headers["Content_Type"] = "application/json"
    body = json.dumps(request or {})
    answer = send(explorer.address, "POST", f"ask/{question}", body, **headers)
    assert answer[0] == status, answer
    return json.loads(answer[2])


def port_of(explorer):
    return urllib.parse.urlsplit(explorer.address).port


# --- who is answered ---


def test_it_is_reached_from_this_machine_only(explorer):
    with open("/proc/net/tcp", encoding="ascii") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert f"0100007F:{port_of(explorer):04X}" in listening
    assert f"00000000:{port_of(explorer):04X}" not in listening


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
        assert body.replace(b"http://www.w3.org/2000/svg", b"").count(b"http") == 0
    token = urllib.parse.urlsplit(explorer.address).path.strip("/")
    status, headers, _ = send(explorer.address, "GET", "", path=f"/{token}")
    assert (status, headers["Location"]) == (308, f"/{token}/")


@pytest.mark.parametrize("path", ["/", "/wrong/ask/model", "/%ff/", "//", "/ask/model"])
def test_without_the_token_nothing_is_answered(explorer, path):
    for method in ("GET", "POST", "PUT"):
        status, _, body = send(explorer.address, method, "", path=path)
        assert status == 403 and b"token is missing" in body


def test_another_host_or_origin_is_refused(explorer):
    port = port_of(explorer)
    hosts = "evil.example", "127.0.0.1", "127.0.0.1:1", ""
    origins = "http://evil.example", "null", f"https://127.0.0.1:{port}", ""
    wrong = [({"Host": host}, b"this machine only") for host in hosts]
    wrong += [({"Origin": origin}, b"own page only") for origin in origins]
    for headers, sentence in wrong:
        for method, name in (("GET", ""), ("POST", "ask/model")):
            status, _, body = send(explorer.address, method, name, **headers)
            assert status == 403 and sentence in body, headers
    for name in ("localhost", "127.0.0.1"):
        host = f"{name}:{port}"
        assert ask(explorer, "model", Host=host, Origin=f"http://{host}")["name"]


# --- requests that are none ---

MISTAKES = {
    "no object": ("model", b"[1]", 400),
    "no UTF-8": ("explore", b'{"text": "\xff"}', 400),
    "a number": ("explore", b'{"text": 5}', 400),
    "a long text": ("explore", json.dumps({"text": "a" * 10_001}).encode(), 400),
    "much": ("explore", b" " * 200_000, 413),
    "no ids": ("explore", b'{"text": "a", "prefix": ["a"]}', 400),
    "an id that is none": ("explore", b'{"text": "a", "prefix": [12]}', 400),
    "too many": ("explore", b'{"text": "a", "k": 21}', 400),
    "true": ("samples", b'{"text": "a", "temperature": true}', 400),
    "infinite": ("samples", b'{"text": "a", "temperature": 1e999}', 400),
    "nested": ("explore", b'{"text": ' + b"[" * 100_000, 400),
    "another question": ("other", b"{}", 404),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(explorer, name):
    question, body, expected = MISTAKES[name]
    headers = {"Content_Type": "application/json"}
    status, headers, answer = send(explorer.address, "POST", f"ask/{question}", body, **headers)
    assert (status, list(json.loads(answer))) == (expected, ["error"])
    assert "Content-Security-Policy" in headers


def test_methods_and_types(explorer):
    address, chunked = explorer.address, {"Transfer_Encoding": "chunked"}
    assert send(address, "GET", "ask/model")[0] == 415
    assert send(address, "POST", "ask/model", b"{}", Content_Type="text/plain")[0] == 415
    assert send(address, "GET", "../setup.cfg")[0] == 404
    assert send(address, "HEAD", "explorer.js")[2] == b""
    chunked["Content_Type"] = "application/json"
    assert send(address, "POST", "ask/explore", b"zz\r\n", **chunked)[0] == 400


class Failing:
    """A model with a mistake in it."""

    questions = ("explore",)

    def answer(self, question, request):
        raise TypeError("two\nlines")


def test_failures_are_status_500_and_one_line_in_the_log(caplog):
    with serving_model(Failing()) as explorer:
        answer = ask(explorer, "explore", {"text": "abc"}, 500)
    assert "see its terminal" in answer["error"]
    (record,) = caplog.records
    assert "TypeError: two lines (test_explorer.py, line" in record.getMessage()
    assert record.exc_info is None


# --- answers ---


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
    assert ask(explorer, "explore", {"text": "one \ud800"})["text"]
    answer = ask(explorer, "explore", {"text": "  "})
    assert (answer["text"], answer["steps"], answer["log_prob"]) == ("", [], 0.0)


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


def test_several_sentences_at_once(explorer, word_translator):
    sentences = ["one", "two three", "four four four", "three"] * 3
    with concurrent.futures.ThreadPoolExecutor(len(sentences)) as pool:
        answers = pool.map(lambda text: ask(explorer, "explore", {"text": text}), sentences)
    assert [answer["text"] for answer in answers] == word_translator.translate(sentences)


# --- the command ---


def test_mistakes_of_the_command_come_before_tensorflow(tmp_path):
    with listen() as taken:
        port = str(taken.getsockname()[1])
        commands = [
            (["/none"], "/none is not a directory"),
            ([tmp_path], "is neither a run directory"),
            ([RUN, "--port", "70000"], "must be 0-65535"),
            ([RUN, "--port", port], f"Port {port} cannot be"),
        ]
        sentences = sentences_before_tensorflow([["explore", *words] for words, _ in commands])
    for sentence, (_, message) in zip(sentences, commands, strict=True):
        assert sentence.startswith("keras-transformer: ") and message in sentence, sentence
    assert run("explore", RUN, "--port", "-1").returncode == 2
    result = run("explore", EXPORT)
    assert result.returncode == 2 and b"is a SavedModel: give the run" in result.stderr
    with pytest.raises(ValueError, match="is a SavedModel, which does not return all attention"):
        ExploredRun(Opened(EXPORT))


def test_the_command_prints_the_address_and_ends_when_interrupted():
    command = [sys.executable, "-m", "keras_transformer", "explore", str(RUN), "--no-browser"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with child_process.running(command, env=shell_environment(), **pipes) as process:
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


# --- the page ---

TEXT = "one two three"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as driver:
        yield driver


@pytest.fixture
def page(browser, explorer):
    browser.get(explorer.address)
    until(browser, lambda: one(browser, "#text").get_attribute("value"))  # it has started
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def translate(driver, text):
    """Types a sentence and waits for its translation."""
    write(driver, text)
    number = len(text.split()) + 1
    until(driver, lambda: len(every(driver, "#source > *")) == number and is_done(driver))


def is_done(driver):
    started = one(driver, "#status").text.startswith("The probability")
    return started and texts(driver, "#samples li")


def test_a_sentence_is_translated_and_explained(page, explorer):
    from selenium.webdriver.common.action_chains import ActionChains

    translate(page, TEXT)
    answer = ask(explorer, "explore", {"text": TEXT})
    assert contents([one(page, "#translation")]) == [answer["text"]]
    tokens, weights = [step["token"] for step in answer["steps"]], answer["attention"]
    assert texts(page, "#target > button") == tokens
    assert texts(page, "#source > *") == answer["source"]
    until(page, lambda: len(every(page, "#n-best li")) == len(every(page, "#samples li")) == 5)
    cells = every(page, "#map tbody td")
    assert len(cells) == len(tokens) * 4
    mean = np.mean(weights["cross"][1], axis=0)
    assert contents(cells[:4]) == [f"{x:.2f}" for x in mean[0]]
    # One head, and the weight of the cell that is pointed at.
    one(page, "[aria-label='layer 3, head 2']").click()
    cell = every(page, "#map tbody tr")[1].find_elements("css selector", "td")[2]
    ActionChains(page).move_to_element(cell).perform()
    expected = f"{tokens[1]} \u2192 {answer['source'][2]}: {weights['cross'][2][1][1][2]:.3f}"
    until(page, lambda: one(page, "#weight").text == expected)
    for kind, names in (("encoder", answer["source"]), ("decoder", ["<s>", *tokens[:-1]])):
        one(page, f"[value={kind}]").click()
        assert contents(every(page, "#map tbody th")) == names
        row = every(page, "#map tbody tr")[1].find_elements("css selector", "td")
        assert contents(row) == [f"{x:.2f}" for x in weights[kind][2][1][1]]


def test_an_alternative_becomes_the_prefix_by_the_keyboard_alone(page, explorer):
    from selenium.webdriver.common.keys import Keys

    assert press(page) == "Sentence to translate"
    translate(page, TEXT)
    before = ask(explorer, "explore", {"text": TEXT, "k": 10})
    examples = len(every(page, "#examples button"))
    assert press(page, *[Keys.TAB] * (1 + examples)).startswith("token 1: ")
    assert press(page, Keys.ARROW_RIGHT).startswith("token 2: ")
    assert press(page, Keys.ENTER).endswith(", current")
    rows = every(page, "#map tbody tr")
    selected = [row.get_attribute("class") == "selected" for row in rows]
    assert selected == [i == 1 for i in range(len(rows))]
    choices = until(page, lambda: every(page, "#alternatives li button"))
    best = before["steps"][1]["best"]
    assert [choice.text.split("\n")[0] for choice in choices] == [one["token"] for one in best]
    unnamed = {"listitem", "list", "status", "alert", "radiogroup"}
    controls = every(page, "button, input, textarea, fieldset, table, [role]")
    for control in filter(lambda control: control.is_displayed(), controls):
        name, role = control.accessible_name, control.aria_role
        assert name or role in unnamed, control.get_attribute("outerHTML")
    assert press(page, Keys.ESCAPE).startswith("token 2: ")
    assert not one(page, "#alternatives").is_displayed()
    press(page, Keys.ENTER)
    until(page, lambda: every(page, "#alternatives li button"))[2].click()
    prefix = [before["steps"][0]["id"], best[2]["id"]]
    after = ask(explorer, "explore", {"text": TEXT, "prefix": prefix})
    tokens = [step["token"] for step in after["steps"]]
    until(page, lambda: texts(page, "#target > button") == tokens)
    assert len(every(page, "#target > .chosen")) == min(2, len(tokens))
    assert press(page).endswith("part of the prefix") and not every(page, "#map tr.selected")
    one(page, "#release").click()
    again = [step["token"] for step in before["steps"]]
    until(page, lambda: texts(page, "#target > button") == again)
    assert not every(page, "#target > .chosen")
    # From the tokens on to the kinds of attention, the heads, and the map.
    one(page, "#target > button").click()
    assert "cross" in press(page, Keys.ESCAPE, Keys.TAB)
    assert press(page, Keys.TAB, Keys.ARROW_DOWN, Keys.ARROW_RIGHT) == "layer 3, head 1"
    assert one(page, "#map-title").text.startswith("layer 3, head 1: ")
    press(page, Keys.TAB, Keys.ARROW_DOWN, Keys.END)
    assert "</s>: " in one(page, "#weight").text


def test_hostile_text_is_text(page):
    write(page, " ".join(HOSTILE) + " <b>one</b> \u202e &amp;")
    until(page, lambda: f"\u2581{HOSTILE[0]}" in texts(page, "#source > *"))
    until(page, lambda: is_done(page))
    every(page, "#target > button")[1].click()
    assert any(word in contents([one(page, "#alternatives")])[0] for word in HOSTILE)
    assert not every(page, "main img, main script, main b")
    assert "<b>base" in one(page, "#model").text and "hacked" not in page.title


def test_only_the_latest_sentence_is_shown(page, explorer, word_translator):
    """The first one's answer comes when another sentence stands there."""
    translate(page, TEXT)
    with explorer.server.app._model._lock:  # it does not answer
        write(page, "four")
        until(page, lambda: one(page, "#status").text == "Translating \u2026")
        page.execute_script(
            "window.seen = [];"
            "new MutationObserver(() => seen.push(document.querySelectorAll('#source > *').length))"
            ".observe(document.querySelector('#source'), { childList: true });"
        )
        write(page, "three two")
        time.sleep(0.5)  # longer than the page waits for another key
    until(page, lambda: texts(page, "#source > *")[:2] == ["\u2581three", "\u2581two"])
    until(page, lambda: is_done(page))
    assert set(page.execute_script("return seen")) == {3}
    assert contents([one(page, "#translation")]) == word_translator.translate(["three two"])


def test_examples_of_the_run_and_a_model_that_is_gone(browser, explorer, explored_run):
    browser.get(explorer.address)
    until(browser, lambda: is_done(browser))
    assert one(browser, "#text").get_attribute("value") == "four two"
    buttons = every(browser, "#examples button")
    assert [button.text for button in buttons] == ["four two", "one", "two", "three"]
    buttons[1].click()
    until(browser, lambda: texts(browser, "#source > *") == ["\u2581one", "</s>"])
    elsewhere = explored_run.rename(explored_run.with_name("elsewhere"))
    try:
        write(browser, "two")
        until(browser, lambda: "is missing: restore it" in one(browser, "#error").text)
        assert one(browser, "#translation").is_displayed(), "blank"
    finally:
        elsewhere.rename(explored_run)
    with serving_model(Silent()) as stopped:
        browser.get(stopped.address)
        until(browser, lambda: one(browser, "#model").text == "silent")
    write(browser, "c")
    until(browser, lambda: "does not answer: it was stopped" in one(browser, "#error").text)
    browser.get_log("browser")  # has the failures


class Silent:
    """A model without examples, which is asked nothing else."""

    questions = ("model", "explore", "n-best", "samples")

    def answer(self, question, request):
        return {"name": "silent", "examples": []}
