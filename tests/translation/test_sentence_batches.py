"""Sentences in batches: of similar length, several at once, and back in order."""

import threading

import pytest

from keras_transformer.kernels.tensorflow import machine
from keras_transformer.presets import SearchConfig
from keras_transformer.translation.sentence_batches import translate_sorted
from tests.support.toy_translator import SOURCES, trained_translator


def test_similar_lengths_are_translated_together():
    batches = []

    def record(rows):
        batches.append(rows)
        return [row.decode().upper() for row in rows]

    assert translate_sorted(record, ["ccc", "a", "dddd", "bb", ""], 2) == [
        *("CCC", "A", "DDDD", "BB", "")
    ]
    assert batches == [[b"dddd", b"ccc"], [b"bb", b"a"], [b""]]


def test_cores_that_work_apart_share_the_sentences(monkeypatch):
    """Batches are translated at once, small enough that each core has one; nothing else changes."""
    translator = trained_translator()
    expected = translator.translate_n_best(SOURCES, search=SearchConfig(beam_size=2))
    monkeypatch.setattr(machine, "operations_at_once", lambda: 3)
    found = translator.translate_n_best(SOURCES, search=SearchConfig(beam_size=2))
    assert [[x.text for x in row] for row in found] == [[x.text for x in row] for row in expected]

    together = threading.Barrier(3)  # no thread goes on before three have come

    def wait(rows):
        together.wait(timeout=60)
        return [row.decode() for row in rows]

    texts = ["ccc", "a", "dddd", "bb", ""]
    assert translate_sorted(wait, texts) == texts


def test_an_error_in_one_of_many_batches_is_the_callers(monkeypatch):
    monkeypatch.setattr(machine, "operations_at_once", lambda: 2)

    def fail(rows):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        translate_sorted(fail, ["a", "b"])
