"""Tokenizers and translators go to other processes: multiprocessing, Spark and Ray pickle them."""

import copy
import multiprocessing
import pickle

import pytest

import keras_transformer as kt
from tests.support.toy_translator import SOURCES, random_translator

LINES = ["anna und bob", "bob"] * 50
TEXTS = ["anna und bob", "", "unbekannt"]


def subword():
    return kt.SubwordTokenizer.train(LINES, model_type="char")


def wordpiece():
    return kt.WordPieceTokenizer.train(LINES, 19, lowercase=True)


def ids_and_translations(tokenizer, translator):
    return tokenizer(TEXTS).to_list(), translator.translate(SOURCES)


@pytest.mark.parametrize("train", [subword, wordpiece])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copied_tokenizer_is_the_same(train, copied):
    tokenizer = train()
    twin = copied(tokenizer)
    assert type(twin) is type(tokenizer) and twin.model == tokenizer.model
    assert twin(TEXTS).to_list() == tokenizer(TEXTS).to_list()
    assert twin.detokenize(twin(TEXTS[0])) == tokenizer.detokenize(tokenizer(TEXTS[0]))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_translator_is_the_same(copied):
    made = random_translator(subword())
    translator = kt.Translator(made.model, made.source_tokenizer, made.target_tokenizer, 5)
    translator.card = {"data": {"pairs": 3}}
    twin = copied(translator)
    assert twin.source_tokenizer is twin.target_tokenizer
    assert twin.longest_output == 5 and twin.card == translator.card
    assert twin.translate(SOURCES, search=kt.SearchConfig(beam_size=2)) == translator.translate(
        SOURCES, search=kt.SearchConfig(beam_size=2)
    )


def test_another_process():
    sent = wordpiece(), random_translator()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ids_and_translations, sent) == ids_and_translations(*sent)
