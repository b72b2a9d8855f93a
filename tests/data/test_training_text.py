"""The text that a configuration names: split, hashed and sampled by a seed alone."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data import text_files
from keras_transformer.data.pairs import Pair
from keras_transformer.data.text_files import (
    TrainingText,
    decode,
    hash_numbers,
    load_corpus,
    load_valid,
    sample_rows,
)

PAIRS = [Pair(f"source {i % 50}", f"target {i}") for i in range(120)]


def split_validation(pairs, fraction, seed):
    """The pairs to train on, and those held out."""
    blocks = [tuple([pair[side].encode() for pair in pairs] for side in (0, 1))]
    text = TrainingText(SimpleNamespace(blocks=lambda: blocks), fraction, seed)
    return [pair for block in text.blocks() for pair in decode(block)], text.valid


def test_no_source_is_on_both_sides():
    train, valid = split_validation(PAIRS, 0.1, seed=1)
    assert {pair.source for pair in train}.isdisjoint(pair.source for pair in valid)
    assert 0 < len({pair.source for pair in valid}) < 20
    assert sorted([*train, *valid]) == sorted(PAIRS)
    assert [pair for pair in PAIRS if pair in valid] == valid, "in their order"


@pytest.mark.parametrize("fraction", [0.02, 0.3])
def test_the_share_comes_close(fraction):
    """Within four standard deviations, for sources that differ in a digit only."""
    many = [Pair(f"source {i}", "target") for i in range(20_011)]
    _, valid = split_validation(many, fraction, seed=5)
    deviation = (fraction * (1 - fraction) * len(many)) ** 0.5
    assert abs(len(valid) - fraction * len(many)) < 4 * deviation


def test_neither_order_nor_the_rest_of_the_corpus_matters():
    _, valid = split_validation(PAIRS, 0.2, seed=1)
    _, turned = split_validation(PAIRS[::-1], 0.2, seed=1)
    _, half = split_validation(PAIRS[:31], 0.2, seed=1)
    assert turned == valid[::-1] and half == [pair for pair in PAIRS[:31] if pair in valid] != []


def test_the_seed_decides():
    assert split_validation(PAIRS, 0.1, seed=1) == split_validation(PAIRS, 0.1, seed=1)
    assert split_validation(PAIRS, 0.1, seed=1) != split_validation(PAIRS, 0.1, seed=2)


@pytest.mark.parametrize("fraction, part", [(1e-9, "validation"), (1 - 1e-9, "training")])
def test_neither_side_may_be_empty(fraction, part):
    with pytest.raises(ValueError, match=f"leaves no pairs for {part}: change it"):
        split_validation(PAIRS, fraction, seed=1)


def test_the_part_is_found_again(tmp_path):
    """As export does, to show translations of what the model was validated by."""
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS))
    config = kt.TrainConfig(train_source=str(table), valid_fraction=0.1, seed=3)
    corpus = load_corpus(config)
    assert (corpus.train, corpus.valid) == split_validation(PAIRS, 0.1, seed=3)
    assert load_valid(config) == corpus.valid
    other = dataclasses.replace(config, valid_source=str(table), valid_fraction=None)
    assert load_corpus(other).valid == load_valid(other) == PAIRS


@pytest.mark.parametrize("count, size", [(0, 5), (4, 5), (5, 5)])
def test_few_rows_are_all_taken(count, size):
    assert sample_rows(count, size, seed=1).tolist() == list(range(count))


def test_rows_are_drawn_alike_in_any_number_of_looks(monkeypatch):
    rows = sample_rows(10_007, 503, seed=1)
    assert len(set(rows.tolist())) == 503 and (np.diff(rows) > 0).all() and rows.max() < 10_007
    monkeypatch.setattr(text_files, "CHUNK", 700)
    assert sample_rows(10_007, 503, seed=1).tolist() == rows.tolist()
    assert sample_rows(10_007, 503, seed=2).tolist() != rows.tolist()


def test_rows_are_drawn_from_everywhere():
    """Of each tenth about as many: within five standard deviations of 100."""
    counts = np.histogram(sample_rows(100_000, 1000, seed=7), bins=10, range=(0, 100_000))[0]
    assert (np.abs(counts - 100) < 50).all()


def test_hashes_of_seeds_that_follow_each_other_have_nothing_in_common():
    values = np.arange(5003, dtype=np.uint64)
    draws = np.array([hash_numbers(values, seed) for seed in (0, 1, 2)]) / 2.0**64
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.1
    assert np.abs(draws.mean(axis=1) - 0.5).max() < 0.05
