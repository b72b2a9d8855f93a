"""Windows of lines, translated one after the other: what a whole list gives."""

import itertools

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.translation import translate_stream as module
from keras_transformer.translation.incoming_lines import IncomingLines
from keras_transformer.translation.translate_stream import translate_stream
from tests.support.toy_translator import random_translator, toy_pairs

DRAWN = SearchConfig(sample=True, temperature=1.3, seed=3)


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(module, "FIRST", 3)
    monkeypatch.setattr(module, "WINDOW", 5)


@pytest.fixture(scope="module")
def translator():
    return random_translator()


def incoming(texts):
    blocks = iter([f"{text}\n".encode() for text in texts])
    return IncomingLines(lambda size: next(blocks, b""))


def stream(translate, texts, prefixes=None, first=0):
    prefixes = None if prefixes is None else iter(prefixes)
    return list(translate_stream(translate, incoming(texts), prefixes, first))


def test_windows_translate_as_one_list(translator, small_windows):
    texts = [source for source, _ in toy_pairs(19, seed=2)]
    prefixes = [text[: i % 3].upper() for i, text in enumerate(texts)]

    def drawn(texts, prefixes, first):
        return translator.translate_n_best(texts, 4, DRAWN, prefixes, n_best=2, first=first)

    expected = [
        [(one.text, round(one.log_prob, 3)) for one in row] for row in drawn(texts, prefixes, 0)
    ]
    windows = stream(drawn, texts, prefixes)
    assert [len(window) for window in windows] == [3, 5, 5, 5, 1]
    found = [
        [(one.text, round(one.log_prob, 3)) for one in row] for row in itertools.chain(*windows)
    ]
    assert found == expected
    # From the middle on, as when a killed one is resumed.
    later = list(itertools.chain(*stream(drawn, texts[7:], prefixes[7:], first=7)))
    assert [row[0].text for row in later] == [row[0][0] for row in expected[7:]]
    other = translator.translate_n_best(texts[7:], 4, DRAWN, prefixes[7:], n_best=2)
    assert [row[0].text for row in other] != [row[0][0] for row in expected[7:]]


@pytest.mark.parametrize("count", [2, 3, 8, 11])
def test_prefixes_are_as_many_as_lines(small_windows, count):
    calls = []

    def translate(texts, prefixes, first):
        calls.append(first)
        return texts

    assert len(stream(translate, "abc" * 20, "x" * 60)) == 13
    with pytest.raises(ValueError, match=f"Received {count - 1} prefix(es)?, but more lines"):
        stream(translate, "a" * count, "x" * (count - 1))
    calls.clear()
    with pytest.raises(ValueError, match=f"Received {count} lines to translate, but more pref"):
        stream(translate, "a" * count, "x" * (count + 1))
    # A window that is not full is known to be the last: nothing of it is translated in vain.
    assert calls == {2: [], 3: [0], 8: [0, 3], 11: [0, 3]}[count]
    assert stream(translate, [], "") == []
    with pytest.raises(ValueError, match="Received 0 lines"):
        stream(translate, [], "x")


def test_a_prefix_that_is_too_long_goes_by_its_number(translator, small_windows):
    def translate(texts, prefixes, first):
        return translator.translate(texts, prefixes=prefixes, first=first)

    with pytest.raises(ValueError, match="Prefix 7 has 13 tokens"):
        stream(translate, "a" * 9, ["B"] * 6 + ["B" * 12] + ["B"] * 2)


def test_numbers_are_integers_of_any_kind(translator):
    assert (
        translator.translate(["abc"], search=DRAWN, first=np.int64(5))
        == translator.translate(["hgf"] * 5 + ["abc"], search=DRAWN)[5:]
    )
