"""Sentences: every line read once and soon, translated in windows and batches, back in order."""

import gzip
import itertools
import queue
import threading
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.presets import SearchConfig
from keras_transformer.translation import sentences
from keras_transformer.translation import translator as translator_module
from keras_transformer.translation.sentences import IncomingLines, translate_stream
from keras_transformer.translation.translator import in_threads
from tests.support.toy_translator import random_translator, toy_pairs, without_graphs

SAMPLING = SearchConfig(sample=True, temperature=1.3, seed=3)


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(sentences, "FIRST_WINDOW", 3)
    monkeypatch.setattr(sentences, "WINDOW", 5)


@pytest.fixture(scope="module")
def translator():
    return without_graphs(random_translator())


def reading(blocks):
    blocks = iter(blocks)
    return lambda size: next(blocks, b"")


def windows_of(lines, most):
    return list(iter(lambda: lines.take(most), []))


BOM = b"\xef\xbb\xbf"
fragments = st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b" c ", b"\xff", BOM])
texts = st.lists(fragments).map(b"".join)


@example(BOM, 9, 5)
@given(texts, st.integers(1, 9), st.integers(1, 50))
def test_lines_of_any_blocks(text, size, most):
    blocks = [text[i : i + size] for i in range(0, len(text), size)]
    expected = text.removeprefix(BOM).split(b"\n")
    if not expected[-1]:
        expected.pop()
    windows = windows_of(IncomingLines(reading(blocks)), most)
    assert all(len(window) <= most for window in windows)
    assert list(itertools.chain(*windows)) == [line.removesuffix(b"\r") for line in expected]


def test_lines_are_handed_out_while_more_may_come():
    pipe = queue.Queue()
    lines = IncomingLines(lambda size: pipe.get(timeout=60))  # instead of b"", an error ends it
    pipe.put(b"one\ntwo\nthr")
    assert lines.take(100) == [b"one", b"two"]
    pipe.put(b"ee\n")
    assert lines.take(100) == [b"three"]
    pipe.put(b"four")
    pipe.put(b"")
    assert lines.take(100) == [b"four"] and lines.take(100) == []


def test_few_bytes_together(monkeypatch):
    monkeypatch.setattr(sentences, "MAX_WINDOW_BYTES", 100)
    lines = IncomingLines(reading([b"x" * 40 + b"\n"] * 7 + [b"y" * 500 + b"\n"] * 2))
    assert [len(window) for window in windows_of(lines, 50)] == [3, 3, 2, 1]


def test_unreadable_lines():
    read = mock.Mock(side_effect=IsADirectoryError(21, "Is a directory"))
    with pytest.raises(ValueError, match="cannot be read: .*Is a directory"):
        IncomingLines(read).take(5)
    for wrong in ("a\nb\n".encode("utf-16"), gzip.compress(b"a\n")):
        with pytest.raises(ValueError, match="gzipped or UTF-16: unpack or convert them to UTF-8"):
            IncomingLines(reading([wrong])).take(5)


def test_memory_is_bounded(monkeypatch):
    """45,000 lines, 9 MB, pass through; a few windows are in memory."""
    monkeypatch.setattr(sentences, "WINDOW", 512)
    monkeypatch.setattr(sentences, "FIRST_WINDOW", 512)
    monkeypatch.setattr(sentences, "MAX_BLOCKS", 8)
    block = (b"a line of text, " * 12 + b"\n") * 300
    lines = IncomingLines(reading(itertools.repeat(block, 150)))
    tracemalloc.start()
    found = sum(map(len, translate_stream(lambda texts, prefixes, first: texts, lines.take)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == 300 * 150 and peak < 3_000_000


def stream(translate, texts, prefixes=None, first=0):
    lines = IncomingLines(reading([f"{text}\n".encode() for text in texts]))
    prefixes = None if prefixes is None else iter(prefixes)
    return list(translate_stream(translate, lines.take, prefixes, first))


def test_windows_translate_as_one_list(translator, small_windows):
    texts = [source for source, _ in toy_pairs(9, seed=2)]
    prefixes = [text[: i % 3].upper() for i, text in enumerate(texts)]

    def sample(texts, prefixes, first):
        return translator.translate_n_best(texts, 64, SAMPLING, prefixes, n_best=2, first=first)

    def rounded(rows):
        return [[(one.text, round(one.log_prob, 3)) for one in row] for row in rows]

    expected = rounded(sample(texts, prefixes, 0))
    windows = stream(sample, texts, prefixes)
    assert [len(window) for window in windows] == [3, 5, 1]
    assert rounded(itertools.chain(*windows)) == expected
    # From the middle on, as when a killed command is resumed.
    later = list(itertools.chain(*stream(sample, texts[4:], prefixes[4:], first=4)))
    assert [row[0].text for row in later] == [row[0][0] for row in expected[4:]]
    other = sample(texts[4:], prefixes[4:], np.int64(0))  # an integer of any kind
    assert [row[0].text for row in other] != [row[0][0] for row in expected[4:]]


def test_prefixes_are_as_many_as_lines(small_windows):
    calls = []

    def translate(texts, prefixes, first):
        calls.append(first)
        return texts

    assert len(stream(translate, "abc" * 20, "x" * 60)) == 13
    for count in (0, 2, 3, 8):
        calls.clear()
        with pytest.raises(ValueError, match=f"Received {count} lines to translate, but more pref"):
            stream(translate, "a" * count, "x" * (count + 1))
        assert calls == [start for start in (0, 3, 8) if start < count]


def test_errors_name_the_line(translator, small_windows):
    def translate(texts, prefixes, first):
        return translator.translate(texts, prefixes=prefixes, first=first)

    with pytest.raises(ValueError, match="Expected a prefix for each source, received 0 for 1"):
        stream(translate, "a" * 4, ["B"] * 3)
    with pytest.raises(ValueError, match="Prefix 4 has 13 tokens"):
        stream(translate, "a" * 5, ["B"] * 3 + ["B" * 12] + ["B"])


def test_similar_lengths_are_translated_together():
    texts, batches = ["ccc", "a", "dddd", "bb", ""], []

    def upper(chosen):
        batches.append([texts[i] for i in chosen])
        return [texts[i].upper() for i in chosen]

    assert in_threads(upper, list(map(len, texts)), 2) == ["CCC", "A", "DDDD", "BB", ""]
    assert batches == [["dddd", "ccc"], ["bb", "a"], [""]]


def test_threads_share_the_sentences(monkeypatch):
    """Batches are translated at once, small enough that each core has one."""
    monkeypatch.setattr(translator_module, "inter_op_threads", lambda: 3)
    together = threading.Barrier(3)  # no thread continues before three have come

    def wait(chosen):
        together.wait(timeout=60)
        return chosen

    def fail(chosen):
        raise KeyError("lost")

    assert in_threads(wait, [3, 1, 4, 2, 0], 256) == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="lost"):  # the caller's, if it happens in one of them
        in_threads(fail, [1, 1], 1)
