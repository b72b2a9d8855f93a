"""The model card: true, complete, and silent about the machine it was written on."""

import importlib.metadata
import json
import os
import re
import sys

import numpy as np
import pytest

import keras_transformer
from keras_transformer.data.pairs import Pair, fingerprint
from keras_transformer.presets import ExportConfig
from keras_transformer.serving import versions
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.versions import check_names
from tests.support.toy_translator import toy_pairs, trained_translator

USUAL = list(check_names(ExportConfig().signatures))


@pytest.fixture(scope="module")
def card(toy_version):
    with open(os.path.join(toy_version, "model.json"), encoding="utf-8") as file:
        return json.load(file)


def read_page(version):
    with open(os.path.join(version, "MODEL.md"), encoding="utf-8") as file:
        return file.read()


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


def test_card_says_which_tensorflow_wrote_it(card, toy_version):
    version = importlib.metadata.version("tensorflow")
    assert card["versions"]["tensorflow"] == version
    minor = version.rpartition(".")[0]
    expected = f"TF Serving {minor} or newer: TensorFlow {version} wrote this version"
    assert card["serve_with"].startswith(expected)
    assert card["serve_with"] in read_page(toy_version)


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


def test_page_shows_every_signature_and_the_first_row_of_each_example(card, toy_version):
    page = read_page(toy_version)
    assert re.findall("^### (.*)$", page, re.MULTILINE) == USUAL
    blocks = re.findall("```json\n(.*)\n(.*)\n```", page)
    for (request, reply), (name, signature) in zip(blocks, card["signatures"].items(), strict=True):
        example = signature["example"]
        inputs = {key: rows[:1] for key, rows in example["inputs"].items()}
        assert json.loads(request) == {"signature_name": name, "inputs": inputs}
        outputs = {k: x[:1] for k, x in example["outputs"].items() if k != "attention"}
        assert json.loads(reply) == {"outputs": outputs}
    table = card["signatures"]["attention"]["example"]["outputs"]["attention"]
    shape = list(np.shape(table))
    assert f"`attention` of this example has the shape {shape}" in page and min(shape[1:]) > 1


def test_page_is_a_page_without_python(toy_version):
    """Also where the example is long, and where a run had a recipe with all kinds of values."""
    page = read_page(toy_version)
    assert len(page) < 6000 and max(map(len, page.splitlines())) < 400
    recipe = {"languages": [], "plain": (1, "a"), "peak": None, "nfkc": True, "rate": 0.1 + 0.2}
    lines = versions._page({"recipe": recipe, "data": {}, "signatures": {}}).splitlines()
    rows = ["languages | none", "plain | 1, a", "peak | none", "nfkc | yes", "rate | 0.3"]
    assert [line for line in lines if " | " in line][1:] == [f"| {row} |" for row in rows]
    assert "## Data" not in lines


def test_size_is_that_of_the_files(card, toy_version):
    weights = os.listdir(os.path.join(toy_version, "variables"))
    sizes = [os.path.getsize(os.path.join(toy_version, "variables", name)) for name in weights]
    graph = os.path.getsize(os.path.join(toy_version, "saved_model.pb"))
    assert card["size"]["megabytes_of_weights"] == round(sum(sizes) / 1e6, 2) > 0
    assert card["size"]["megabytes_of_graph"] == round(graph / 1e6, 2) > 1


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
