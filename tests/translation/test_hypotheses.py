"""Several translations of one text: a beam's best, or as many draws."""

import dataclasses

import pytest

from keras_transformer.presets import SearchConfig
from tests.support.toy_translator import SOURCES, random_translator


def test_several_draws_are_those_of_the_seeds_that_follow():
    translator = random_translator()
    translator.run_eagerly()
    config = SearchConfig(sample=True, temperature=1.5, seed=2**31 - 1)
    prefixes = ["", "B"] * 5
    drawn = translator.translate_n_best(SOURCES, 4, config, prefixes, n_best=2)
    by_seed = [
        translator.translate(SOURCES, 256, dataclasses.replace(config, seed=seed), prefixes)
        for seed in (2**31 - 1, 0)
    ]
    assert [[one.text for one in draws] for draws in drawn] == [
        list(texts) for texts in zip(*by_seed, strict=True)
    ]
    assert sum(len({one.text for one in draws}) > 1 for draws in drawn) > 4
    assert all(one.score == one.log_prob for draws in drawn for one in draws)
    with pytest.raises(ValueError, match="positive number of samples, received n_best=0"):
        translator.translate_n_best(SOURCES, search=config, n_best=0)


def test_as_many_as_the_beam_is_wide_at_most():
    translator = random_translator()
    translator.run_eagerly()
    config = SearchConfig(beam_size=4, length_penalty=0.6)
    found = translator.translate_n_best(SOURCES, search=config)
    two = translator.translate_n_best(SOURCES, search=config, n_best=2)
    assert two == [hypotheses[:2] for hypotheses in found]
    with pytest.raises(ValueError, match="A beam of 4 gives 1 to 4 translations, received n_b"):
        translator.translate_n_best(SOURCES, search=config, n_best=5)
