"""`Translator.jit_compile`: XLA finds what TensorFlow's executor finds."""

import numpy as np
import pytest

from tests.support.toy_translator import random_translator, toy_pairs

TEXTS = [source for source, _ in toy_pairs(20, seed=3)] + ["", "a"]


@pytest.mark.parametrize("options", [{}, {"beam_size": 3, "max_output_length": 6}], ids=str)
@pytest.mark.parametrize("prefix", [None, "AB"])
def test_translations_are_the_same(options, prefix):
    translator = random_translator(num_layers=2)
    prefixes = prefix and [prefix] * len(TEXTS)
    found = []
    for translator.jit_compile in (False, True):
        found.append(translator.translate_n_best(TEXTS, prefixes=prefixes, **options))
        assert translator.translate([], **options) == []
    for expected, rows in zip(*found, strict=True):
        assert [x.text for x in rows] == [x.text for x in expected]
        for scores in zip(rows, expected, strict=True):
            np.testing.assert_allclose(*(x[1:] for x in scores), rtol=1e-4, atol=1e-4)


def test_samples_do_not_depend_on_it():
    translator = random_translator()
    translator.jit_compile = True
    assert translator.translate(TEXTS, sample=True) == random_translator().translate(
        TEXTS, sample=True
    )
