"""The model card: true, complete, and silent about the machine it was written on."""

import importlib.metadata
import json
import os
import sys

import pytest

import keras_transformer
from keras_transformer.data.pairs import Pair, fingerprint
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.versions import check_names
from tests.support.toy_translator import toy_pairs, trained_translator

USUAL = list(check_names(ExportConfig().signatures))


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
    assert list(card["signatures"]) == USUAL
    assert card["signatures"]["beam"]["beam_size"] == 5
    assert "`import tensorflow_text`" in card["load_with"]


def test_card_says_which_tensorflow_wrote_it(card):
    version = importlib.metadata.version("tensorflow")
    assert card["versions"]["tensorflow"] == version
    minor = version.rpartition(".")[0]
    expected = f"TF Serving {minor} or newer: TensorFlow {version} wrote this version"
    assert card["serve_with"].startswith(expected)


def test_examples_are_what_a_server_answers(card, toy_version):
    sources = [source for source, _ in toy_pairs(40)[:3]]
    assert card["signatures"]["serving_default"]["example"]["inputs"] == {"text": sources}
    with ServerProcess(toy_version) as server:
        for name, signature in card["signatures"].items():
            example = signature["example"]
            reply = server.predict(example["inputs"], name)
            assert reply.keys() == example["outputs"].keys() == signature["outputs"].keys()
            if "text" in reply:
                assert reply["text"] == example["outputs"]["text"]


def test_no_file_names_a_place(toy_version):
    base = os.path.dirname(toy_version)  # where it was written, under another name
    for directory, _, names in os.walk(toy_version):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                content = file.read()
            for place in (base, os.getcwd(), sys.prefix, os.path.expanduser("~")):
                assert place.encode() not in content, name


def test_fingerprint_by_hand():
    # printf 'a\tb\nc\td\n' | sha256sum
    pairs = [Pair("a", "b", ""), Pair("c", "d", "")]
    expected = "31530cb8906d527dbb5ee0624d8a4918233ce77f7a18b576909c0d40f8e202e2"
    found = fingerprint(pairs)
    assert found["pairs"] == 2
    assert found["sha256"] == expected
    assert fingerprint(pairs[::-1]) != found
