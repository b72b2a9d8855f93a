"""What a seed draws is spread evenly, and the same however it is looked at."""

import numpy as np
import pytest

from keras_transformer.data import corpora
from keras_transformer.data.corpora import draw_rows, hash_texts


@pytest.mark.parametrize("count, size", [(0, 5), (4, 5), (5, 5)])
def test_few_rows_are_all_taken(count, size):
    assert draw_rows(count, size, seed=1).tolist() == list(range(count))


def test_rows_are_drawn_alike_in_any_number_of_looks(monkeypatch):
    rows = draw_rows(10_007, 503, seed=1)
    assert len(set(rows.tolist())) == 503 and (np.diff(rows) > 0).all() and rows.max() < 10_007
    monkeypatch.setattr(corpora, "AT_ONCE", 700)
    assert draw_rows(10_007, 503, seed=1).tolist() == rows.tolist()
    assert draw_rows(10_007, 503, seed=2).tolist() != rows.tolist()


def test_rows_are_drawn_from_everywhere():
    """Of each tenth about as many: within five standard deviations of 100."""
    counts = np.histogram(draw_rows(100_000, 1000, seed=7), bins=10, range=(0, 100_000))[0]
    assert (np.abs(counts - 100) < 50).all()


def test_hashes_of_seeds_that_follow_each_other_have_nothing_in_common():
    texts = [f"text {number}".encode() for number in range(5003)]
    draws = np.array([hash_texts(texts, seed) for seed in (0, 1, 2)]) / 2.0**64
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.1
    assert np.abs(draws.mean(axis=1) - 0.5).max() < 0.05
