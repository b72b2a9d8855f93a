"""The model card: true, complete, and silent about the machine it was written on."""

import json
import os
import re
import sys

import pytest

import keras_transformer
from keras_transformer.corpora.corpus import fingerprint
from keras_transformer.corpora.pair import Pair
from keras_transformer.serving.acceptance.server_process import ServerProcess
from keras_transformer.serving.signatures import SIGNATURES
from tests.support.toy_translator import toy_pairs, trained_translator


@pytest.fixture(scope="module")
def card(toy_version):
    with open(os.path.join(toy_version, "model.json"), encoding="utf-8") as file:
        return json.load(file)


def test_card_describes_the_model(card):
    model = trained_translator().model
    assert card["parameters"] == model.count_params() > 0
    assert card["architecture"]["d_model"] == model.d_model
    assert card["vocabulary"]["source"]["ids"] == model.source_vocabulary_size
    assert card["vocabulary"]["source"] == card["vocabulary"]["target"]
    assert card["versions"]["keras_transformer"] == keras_transformer.__version__
    assert set(card["signatures"]) == set(SIGNATURES)
    assert card["signatures"]["beam"]["beam_size"] == 5
    assert "`import tensorflow_text`" in card["load_with"]


def test_examples_are_what_a_server_answers(card, toy_version):
    sources = [source for source, _ in toy_pairs(5)[:3]]
    assert card["signatures"]["serving_default"]["example"]["inputs"] == {"text": sources}
    with ServerProcess(toy_version) as server:
        for name, signature in card["signatures"].items():
            example = signature["example"]
            reply = server.predict(example["inputs"], name)
            assert reply.keys() == example["outputs"].keys() == signature["outputs"].keys()
            if "text" in reply:
                assert reply["text"] == example["outputs"]["text"]


def test_page_shows_every_signature_and_the_same_examples(card, toy_version):
    with open(os.path.join(toy_version, "MODEL.md"), encoding="utf-8") as file:
        page = file.read()
    assert re.findall("^### (.*)$", page, re.MULTILINE) == list(SIGNATURES)
    blocks = re.findall("```json\n(.*)\n(.*)\n```", page)
    for (request, reply), (name, signature) in zip(blocks, card["signatures"].items(), strict=True):
        assert json.loads(request) == {
            "signature_name": name,
            "inputs": signature["example"]["inputs"],
        }
        assert json.loads(reply) == {"outputs": signature["example"]["outputs"]}


def test_card_names_no_place(toy_version):
    for name in ("model.json", "MODEL.md"):
        with open(os.path.join(toy_version, name), encoding="utf-8") as file:
            content = file.read()
        for place in (toy_version, os.getcwd(), sys.prefix, os.path.expanduser("~")):
            assert place not in content


def test_fingerprint_by_hand():
    # printf 'a\tb\nc\td\n' | sha256sum
    pairs = [Pair("a", "b", ""), Pair("c", "d", "")]
    expected = "31530cb8906d527dbb5ee0624d8a4918233ce77f7a18b576909c0d40f8e202e2"
    found = fingerprint(pairs)
    assert found["pairs"] == 2
    assert found["sha256"] == expected
    assert fingerprint(pairs[::-1]) != found
