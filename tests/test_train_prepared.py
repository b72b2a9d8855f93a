"""A prepared corpus gives the same run as its text, whoever has prepared it."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs import training_data
from keras_transformer.runs.run import DATA, Run
from keras_transformer.runs.training_data import valid_pairs
from keras_transformer.train import train
from tests.support.reversed_text import config_of, write_corpus

VOCABULARY = dict(vocabulary_size=300, vocabulary_sample=150, valid_fraction=0.1)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text"), 301, 1)


@pytest.fixture(scope="module")
def config(text):
    return config_of(pathlib.Path(text[0]).parent, 301, valid_rows=0, **VOCABULARY)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A training on the text in memory."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    train(config, output)
    return output


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory):
    """The same text, prepared with vocabularies of their own for both sides."""
    output = tmp_path_factory.mktemp("corpora") / "corpus"
    kt.prepare(kt.PrepareConfig(*text, **VOCABULARY, joint_vocabulary=False), output, processes=1)
    return str(output)


def assert_same_run(one, other):
    """Bit for bit: weights, vocabularies, and what is known of the text."""
    for a, b in zip(*(kt.load(run).model.get_weights() for run in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("source.spm", "target.spm", DATA):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def from_corpus(config, *corpora):
    fresh = dict.fromkeys(("train_source", "train_target", "valid_fraction"))
    return dataclasses.replace(config, **fresh, corpus=corpora)


def test_a_corpus_gives_the_run_of_its_text(whole, config, corpus, tmp_path):
    train(from_corpus(config, corpus), tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
    assert valid_pairs(Run(tmp_path / "run")) == valid_pairs(Run(whole))
    assert not {corpus} & set(map(str, Run(tmp_path / "run").describe()["recipe"].values()))


def test_a_large_text_is_not_read_into_memory(config, tmp_path, monkeypatch):
    monkeypatch.setattr(training_data, "MAX_IN_MEMORY", 1000)
    with pytest.raises(ValueError, match="is too large to be read .* by --corpus"):
        train(config, tmp_path / "new")


def test_fine_tuning_on_a_corpus(whole, config, corpus, text, tmp_path):
    """It is refused with other vocabularies, and starts with those of the run otherwise."""
    other = str(tmp_path / "other")
    kt.prepare(kt.PrepareConfig(*text, vocabulary_size=290, valid_fraction=0.1), other)
    start = dataclasses.replace(from_corpus(config, corpus), start_from=str(whole), epochs=1)
    with pytest.raises(ValueError, match="vocabulary_size must be 290 .* received 300"):
        train(dataclasses.replace(start, corpus=(other,)), tmp_path / "run")
    shutil.rmtree(other)
    kt.prepare(kt.PrepareConfig(*text, **VOCABULARY, joint_vocabulary=False, seed=9), other)
    with pytest.raises(ValueError, match=f"prepare it with --vocabularies {whole}"):
        train(dataclasses.replace(start, corpus=(other,)), tmp_path / "run")
    shutil.rmtree(other)
    taken = kt.PrepareConfig(*text, vocabularies=str(whole), valid_fraction=0.1)
    kt.prepare(taken, other, processes=1)
    train(dataclasses.replace(start, corpus=(other,)), tmp_path / "run")
    assert (tmp_path / "run" / "source.spm").read_bytes() == (whole / "source.spm").read_bytes()


def test_a_mix_is_known_by_its_corpora_and_weights(config, corpus, tmp_path):
    prints = []
    for corpora in ((corpus,), (f"{corpus}:3",), (corpus, corpus), (f"{corpus}:2", corpus)):
        mixed = from_corpus(config, *corpora)
        prints.append(
            training_data.open_data(mixed, Run(tmp_path), resume=False).fingerprints["train"]
        )
    assert prints[0] == prints[1], "one corpus is all of a mix"
    assert len({json.dumps(one) for one in prints}) == 3
    assert prints[2]["pairs"] == 2 * prints[0]["pairs"]
