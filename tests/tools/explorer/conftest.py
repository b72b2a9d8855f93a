"""A real browser without a window: Debian's chromium and its driver."""

import os
import shutil

import pytest

# Set by .ci/run: what is absent is an error there.
REQUIRED = "KERAS_TRANSFORMER_BROWSER"
PROGRAMS = ("chromium", "chromedriver")
PATIENCE = 120  # seconds: on a busy machine the first answer, which makes a graph, takes long


def open_browser():
    """A Selenium driver; skips the test where there is no browser, and says what to install."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        sentence = f"no {' and no '.join(missing)}: apt-get install chromium chromium-driver"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(sentence)
        pytest.skip(sentence)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)  # as root, and where shared memory is small
    options.add_argument("--window-size=1100,1500")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options, service)


def until(driver, condition):
    """Waits for a condition, a function without arguments: what it returned that is true."""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(driver, PATIENCE, 0.05, [StaleElementReferenceException])
    return wait.until(lambda _: condition())


def one(driver, selector):
    """The first element of a CSS selector."""
    return driver.find_element("css selector", selector)


def every(driver, selector):
    """All elements of one."""
    return driver.find_elements("css selector", selector)


def texts(driver, selector):
    """What is seen of their texts."""
    return [element.text for element in every(driver, selector)]


def contents(elements):
    """Their texts, seen or not."""
    return [element.get_attribute("textContent") for element in elements]


def write(driver, text):
    """Types a sentence in the place of what is there."""
    from selenium.webdriver.common.keys import Keys

    one(driver, "#text").send_keys(Keys.CONTROL, "a")
    one(driver, "#text").send_keys(text)


def press(driver, *keys):
    """Presses keys, wherever the focus is; returns what a screen reader calls what has it then."""
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()
    return driver.switch_to.active_element.accessible_name
