"""The pairs that a configuration names; a validation part cut off those to train on."""

import dataclasses

import pytest

import keras_transformer as kt
from keras_transformer.corpora.configured import cut_off, load_corpus, load_valid
from keras_transformer.corpora.pair import Pair

PAIRS = [Pair(f"source {i % 50}", f"target {i}") for i in range(120)]


def test_no_source_is_on_both_sides():
    train, valid = cut_off(PAIRS, 0.1, seed=1)
    assert {pair.source for pair in train}.isdisjoint(pair.source for pair in valid)
    assert len({pair.source for pair in valid}) == 5
    assert sorted([*train, *valid]) == sorted(PAIRS)
    assert [pair for pair in PAIRS if pair in valid] == valid, "in their order"


def test_the_seed_decides():
    assert cut_off(PAIRS, 0.1, seed=1) == cut_off(PAIRS, 0.1, seed=1)
    assert cut_off(PAIRS, 0.1, seed=1) != cut_off(PAIRS, 0.1, seed=2)


@pytest.mark.parametrize("fraction, count", [(1e-9, 1), (0.999, 49)])
def test_neither_side_is_empty(fraction, count):
    train, valid = cut_off(PAIRS, fraction, seed=1)
    assert train and len({pair.source for pair in valid}) == count


def test_one_source_cannot_be_cut():
    with pytest.raises(ValueError, match="no validation part can be cut off"):
        cut_off([Pair("same", "a"), Pair("same", "b")], 0.5, seed=1)


def test_the_part_is_found_again(tmp_path):
    """As export does, to show translations of what the model was validated by."""
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS))
    config = kt.TrainConfig(train_source=str(table), valid_fraction=0.1, seed=3)
    corpus = load_corpus(config)
    assert (corpus.train, corpus.valid) == cut_off(PAIRS, 0.1, seed=3)
    assert load_valid(config) == corpus.valid
    other = dataclasses.replace(config, valid_source=str(table), valid_fraction=None)
    assert load_corpus(other).valid == load_valid(other) == PAIRS
