"""The explorer's page in a real browser without a window: Debian's chromium and its driver."""

import os
import shutil
import time
import types

import numpy as np
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.tools.explorer.conftest import HOSTILE, ask, serving_model

REQUIRED = "KERAS_TRANSFORMER_BROWSER"  # set by .ci/run: what is absent is an error there
PATIENCE = 120  # seconds: on a busy machine the first answer, which makes a graph, takes long
TEXT = "one two three"


@pytest.fixture(scope="module")
def browser():
    """A Selenium driver; skips the tests where there is no browser, and says what to install."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        sentence = "no browser, or not its driver: apt-get install chromium chromium-driver"
        (pytest.fail if os.environ.get(REQUIRED) == "required" else pytest.skip)(sentence)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)  # as root, and where shared memory is small
    options.add_argument("--window-size=1100,1500")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        yield driver


@pytest.fixture
def page(browser, explorer):
    browser.get(explorer.address)
    until(browser, lambda: one(browser, "#text").get_attribute("value"))  # it has started
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def until(driver, condition):
    """Waits for a condition, a function without arguments: what it returned that is true."""
    wait = WebDriverWait(driver, PATIENCE, 0.05, [StaleElementReferenceException])
    return wait.until(lambda _: condition())


def one(driver, selector):
    return driver.find_element("css selector", selector)


def every(driver, selector):
    return driver.find_elements("css selector", selector)


def texts(driver, selector):
    """What is seen of them."""
    return [element.text for element in every(driver, selector)]


def contents(elements):
    """Their texts, seen or not."""
    return [element.get_attribute("textContent") for element in elements]


def write(driver, text):
    one(driver, "#text").send_keys(Keys.CONTROL, "a")
    one(driver, "#text").send_keys(text)


def press(driver, *keys):
    """Presses keys, wherever the focus is; returns what a screen reader calls what has it then."""
    ActionChains(driver).send_keys(*keys).perform()
    return driver.switch_to.active_element.accessible_name


def is_done(driver):
    started = one(driver, "#status").text.startswith("The probability")
    return started and texts(driver, "#samples li")


def translate(driver, text):
    write(driver, text)
    number = len(text.split()) + 1
    until(driver, lambda: len(every(driver, "#source > *")) == number and is_done(driver))


def tokens_of(answer):
    return [step["token"] for step in answer["steps"]]


def test_a_sentence_is_translated_and_explained(page, explorer):
    translate(page, TEXT)
    answer = ask(explorer, "explore", {"text": TEXT})
    assert contents([one(page, "#translation")]) == [answer["text"]]
    tokens, weights = tokens_of(answer), answer["attention"]
    assert texts(page, "#target > button") == tokens
    assert texts(page, "#source > *") == answer["source"]
    until(page, lambda: len(every(page, "#n-best li")) == len(every(page, "#samples li")) == 5)
    mean = np.mean(weights["cross"][1], axis=0)
    assert contents(every(page, "#map tbody td")) == [f"{x:.2f}" for x in mean.flat]
    # One head, and the weight of the cell that is pointed at.
    one(page, "[aria-label='layer 3, head 2']").click()
    ActionChains(page).move_to_element(every(page, "#map tbody td")[4 + 2]).perform()
    expected = f"{tokens[1]} \u2192 {answer['source'][2]}: {weights['cross'][2][1][1][2]:.3f}"
    until(page, lambda: one(page, "#weight").text == expected)
    for kind, names in (("encoder", answer["source"]), ("decoder", ["<s>", *tokens[:-1]])):
        one(page, f"[value={kind}]").click()
        assert contents(every(page, "#map tbody th")) == names
        row = every(page, "#map tbody tr:nth-child(2) td")
        assert contents(row) == [f"{x:.2f}" for x in weights[kind][2][1][1]]


def test_an_alternative_becomes_the_prefix_by_the_keyboard_alone(page, explorer):
    assert press(page) == "Sentence to translate"
    translate(page, TEXT)
    before = ask(explorer, "explore", {"text": TEXT, "k": 10})
    examples = len(every(page, "#examples button"))
    assert press(page, *[Keys.TAB] * (1 + examples)).startswith("token 1: ")
    assert press(page, Keys.ARROW_RIGHT).startswith("token 2: ")
    assert press(page, Keys.ENTER).endswith(", current")
    assert every(page, "#map tr.selected") == every(page, "#map tbody tr")[1:2]
    choices = until(page, lambda: every(page, "#alternatives li button"))
    best = before["steps"][1]["best"]
    assert [choice.text.split("\n")[0] for choice in choices] == [one["token"] for one in best]
    unnamed = {"listitem", "list", "status", "alert", "radiogroup"}
    for control in every(page, "button, input, textarea, fieldset, table, [role]"):
        named = control.accessible_name or control.aria_role in unnamed
        assert named or not control.is_displayed(), control.get_attribute("outerHTML")
    assert press(page, Keys.ESCAPE).startswith("token 2: ")
    assert not one(page, "#alternatives").is_displayed()
    press(page, Keys.ENTER)
    until(page, lambda: every(page, "#alternatives li button"))[2].click()
    prefix = [before["steps"][0]["id"], best[2]["id"]]
    tokens = tokens_of(ask(explorer, "explore", {"text": TEXT, "prefix": prefix}))
    until(page, lambda: texts(page, "#target > button") == tokens)
    assert len(every(page, "#target > .chosen")) == min(2, len(tokens))
    assert press(page).endswith("part of the prefix") and not every(page, "#map tr.selected")
    one(page, "#release").click()
    until(page, lambda: texts(page, "#target > button") == tokens_of(before))
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
    about = {"name": "silent", "examples": []}
    silent = types.SimpleNamespace(questions=("model",), answer=lambda *_: about)
    with serving_model(silent) as stopped:
        browser.get(stopped.address)
        until(browser, lambda: one(browser, "#model").text == "silent")
    write(browser, "c")
    until(browser, lambda: "does not answer: it was stopped" in one(browser, "#error").text)
    browser.get_log("browser")  # has the failures
