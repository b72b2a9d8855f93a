"""The page in a real browser, on a real export: with a real keyboard and pointer.

With KERAS_TRANSFORMER_SCREENSHOTS=FOLDER its pictures are kept there.
"""

import contextlib
import os
import pathlib
import shutil
import time

import numpy as np
import pytest

from keras_transformer.runs.run import Run
from tests.support.browser import every, focused, one, open_browser, press, texts, until, write
from tests.support.paths import FIXTURES
from tests.tools.explorer.conftest import HOSTILE, serving
from tests.tools.explorer.test_explorer_server import ask

TEXT = "one two three"
RUN = FIXTURES / "format-1" / "run"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as driver:
        yield driver


@pytest.fixture
def picture(browser, tmp_path):
    """A function that takes a screenshot, and looks at it as far as a program can."""
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_SCREENSHOTS", tmp_path))

    def take(name):
        path = folder / f"{name}.png"
        assert browser.save_screenshot(str(path))
        from matplotlib.image import imread

        colours = {tuple(pixel) for pixel in imread(path)[::4, ::4, :3].reshape(-1, 3)}
        assert len(colours) > 30, "an empty page"

    return take


@pytest.fixture
def page(browser, explorer):
    browser.get(explorer.address)
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def translate(driver, text):
    """Types a sentence and waits for its translation."""
    write(driver, text)
    number = len(text.split()) + 1
    until(driver, lambda: len(every(driver, "#source > *")) == number and _is_done(driver))


def _is_done(driver):
    return one(driver, "#status").text.startswith("The probability") and texts(
        driver, "#samples li"
    )


def test_a_sentence_is_translated_and_explained(page, explorer, word_translator, picture):
    translate(page, TEXT)
    expected = ask(explorer, "explore", {"text": TEXT})
    assert one(page, "#translation").get_attribute("textContent") == expected["text"]
    tokens = [step["token"] for step in expected["steps"]]
    assert texts(page, "#target > button") == tokens
    assert texts(page, "#source > *") == expected["source"]
    until(page, lambda: len(every(page, "#n-best li")) == 5)
    assert len(every(page, "#samples li")) == 5
    assert len(every(page, "#heads button")) == 3 * (1 + 2)
    cells = every(page, "#map tbody td")
    assert len(cells) == len(tokens) * 4
    mean = np.mean(expected["attention"]["cross"][1], axis=0)
    assert [cell.get_attribute("textContent") for cell in cells[:4]] == [
        f"{x:.2f}" for x in mean[0]
    ]
    picture("typed")


def test_an_alternative_becomes_the_prefix(page, explorer, picture):
    translate(page, TEXT)
    before = ask(explorer, "explore", {"text": TEXT, "k": 10})
    every(page, "#target > button")[1].click()
    rows = every(page, "#map tbody tr")
    assert [row.get_attribute("class") == "selected" for row in rows] == [
        i == 1 for i in range(len(rows))
    ]
    choices = until(page, lambda: every(page, "#alternatives li button"))
    assert len(choices) == 10
    assert [choice.text.split("\n")[0] for choice in choices] == [
        best["token"] for best in before["steps"][1]["best"]
    ]
    picture("alternatives")
    other = before["steps"][1]["best"][2]
    prefix = [before["steps"][0]["id"], other["id"]]
    choices[2].click()
    after = ask(explorer, "explore", {"text": TEXT, "prefix": prefix})
    tokens = [step["token"] for step in after["steps"]]
    until(page, lambda: texts(page, "#target > button") == tokens)
    assert tokens[1] == other["token"]
    assert len(every(page, "#target > .chosen")) == min(2, len(tokens))
    assert not one(page, "#alternatives").is_displayed()
    assert focused(page).startswith("token 2: ") and focused(page).endswith("part of the prefix")
    assert not every(page, "#map tr.selected")
    picture("prefix")
    one(page, "#release").click()
    again = [step["token"] for step in before["steps"]]
    until(page, lambda: texts(page, "#target > button") == again)
    assert not every(page, "#target > .chosen")


def test_pointing_at_a_cell_shows_its_weight(page, explorer):
    from selenium.webdriver.common.action_chains import ActionChains

    translate(page, TEXT)
    answer = ask(explorer, "explore", {"text": TEXT})
    tokens, weights = [step["token"] for step in answer["steps"]], answer["attention"]
    one(page, "[aria-label='layer 3, head 2']").click()
    cell = every(page, "#map tbody tr")[1].find_elements("css selector", "td")[2]
    ActionChains(page).move_to_element(cell).perform()
    expected = f"{tokens[1]} \u2192 {answer['source'][2]}: {weights['cross'][2][1][1][2]:.3f}"
    until(page, lambda: one(page, "#weight").text == expected)
    for kind, names in (("encoder", answer["source"]), ("decoder", ["<s>", *tokens[:-1]])):
        one(page, f"[value={kind}]").click()
        headers = [x.get_attribute("textContent") for x in every(page, "#map tbody th")]
        assert headers == names
        row = every(page, "#map tbody tr")[1].find_elements("css selector", "td")
        shown = [cell.get_attribute("textContent") for cell in row]
        assert shown == [f"{x:.2f}" for x in weights[kind][2][1][1]]


def test_keyboard_alone(page):
    from selenium.webdriver.common.keys import Keys

    assert focused(page) == "Sentence to translate"
    translate(page, TEXT)
    press(page, Keys.TAB)
    assert focused(page).startswith("token 1: ")
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert focused(page).startswith("token 3: ")
    press(page, Keys.ENTER)
    assert one(page, "#alternatives").is_displayed()
    press(page, Keys.ESCAPE)
    assert not one(page, "#alternatives").is_displayed()
    assert focused(page).startswith("token 3: ")
    press(page, Keys.TAB)
    assert "cross" in focused(page)
    press(page, Keys.TAB, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert focused(page) == "layer 3, head 1"
    assert page.switch_to.active_element.get_attribute("aria-checked") == "true"
    assert one(page, "#map-title").text.startswith("layer 3, head 1: ")
    press(page, Keys.TAB, Keys.ARROW_DOWN, Keys.END)
    assert "</s>: " in one(page, "#weight").text


def test_everything_has_a_name(page):
    translate(page, TEXT)
    every(page, "#target > button")[0].click()
    controls = every(page, "button, input, textarea, fieldset, table, [role]")
    shown = [control for control in controls if control.is_displayed()]
    assert len(shown) > 30
    unnamed = {"listitem", "list", "status", "alert", "radiogroup"}
    for control in shown:
        name, role = control.accessible_name, control.aria_role
        assert name or role in unnamed, control.get_attribute("outerHTML")


def test_hostile_text_is_text(page, picture):
    write(page, " ".join(HOSTILE) + " <b>one</b> \u202e &amp;")
    until(page, lambda: f"\u2581{HOSTILE[0]}" in texts(page, "#source > *"))
    until(page, lambda: _is_done(page))
    for button in every(page, "#target > button")[:2]:
        button.click()
    offered = page.execute_script("return document.querySelector('#alternatives').textContent")
    assert any(word in offered for word in HOSTILE)
    assert not every(page, "main img, main script, main b")
    assert "<b>base" in one(page, "#model").text and "hacked" not in page.title
    picture("hostile")


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
    until(page, lambda: _is_done(page))
    assert set(page.execute_script("return seen")) == {3}
    expected = word_translator.translate(["three two"])[0]
    assert one(page, "#translation").get_attribute("textContent") == expected


def test_a_missing_model_is_reported(browser, tmp_path, picture):
    copy = shutil.copytree(RUN, tmp_path / "copy")
    with contextlib.ExitStack() as stack:
        explorer = stack.enter_context(serving(copy))
        browser.get(explorer.address)
        write(browser, "abc")
        until(browser, lambda: one(browser, "#status").text.startswith("The probability"))
        error = one(browser, "#error")
        copy.rename(tmp_path / "elsewhere")
        write(browser, "b")
        until(browser, lambda: "is missing: restore it" in error.text)
        assert one(browser, "#translation").is_displayed(), "blank"
        picture("gone")
    write(browser, "c")
    until(browser, lambda: "does not answer: it was stopped" in error.text)
    browser.get_log("browser")  # has the failures


def test_examples_of_the_run(browser, tmp_path, picture):
    run = shutil.copytree(FIXTURES / "format-1" / "run", tmp_path / "toy")
    sources = ["abc", " ", "cafe", "abc", "hgf", "bed", "face"]
    Run(run).write_examples([(source, "") for source in sources])
    with serving(run) as explorer:
        browser.get(explorer.address)
        until(browser, lambda: one(browser, "#status").text.startswith("The probability"))
        assert one(browser, "#text").get_attribute("value") == "abc"
        assert one(browser, "#model").text == "toy"
        buttons = every(browser, "#examples button")
        assert [button.text for button in buttons] == ["abc", "cafe", "hgf", "bed"]
        picture("examples")
        buttons[1].click()
        tokens = ask(explorer, "explore", {"text": "cafe"})["source"]
        until(browser, lambda: texts(browser, "#source > *") == tokens)


def test_a_phone_and_the_dark(page, picture):
    size = {"width": 320, "height": 780, "deviceScaleFactor": 1, "mobile": True}
    light = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        translate(page, f"{TEXT} {HOSTILE[0]} " + "four one two " * 6)  # as long as it takes
        every(page, "#target > button")[0].click()
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.execute_script(wide) == 0
        assert (
            page.execute_script("return getComputedStyle(document.body).backgroundColor") != light
        )
        picture("phone-dark")
        page.execute_script("document.querySelector('#attention').scrollIntoView()")
        picture("phone-dark-attention")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
