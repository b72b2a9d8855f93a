"""Versions by their names, and the model card: true, complete, and silent about its machine."""

import importlib.metadata
import json
import os
import pathlib
import sys

import pytest

import keras_transformer as kt
from keras_transformer.data.pairs import Pair, fingerprint
from keras_transformer.presets import SearchConfig
from keras_transformer.serving import versions
from keras_transformer.serving.versions import check_names, make_inputs, read_card
from tests.support.sealing import reseal
from tests.support.toy_translator import toy_pairs


def test_versions_are_what_a_server_takes_for_them(tmp_path):
    for name in ("1", "00007", "x", ".tmp-9-abc", "12.5", "1_000", "-40", "٤٢", f"{2**63}"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{2**63 - 1}").touch()
    assert versions.versions(tmp_path) == {1: "1", 7: "00007", 2**63 - 1: f"{2**63 - 1}"}
    assert versions.versions(tmp_path / "none") == {}


def test_the_highest_version_of_a_base_is_taken(tmp_path):
    for name in ("9", "10", ".tmp-11-abc"):  # 9 < 10, though not as text
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").touch()
    assert versions.version_dir(tmp_path) == str(tmp_path / "10")
    assert versions.version_dir(tmp_path / "9") == tmp_path / "9"
    (tmp_path / "11").mkdir()
    with pytest.raises(ValueError, match="11 does not contain a SavedModel"):
        versions.version_dir(tmp_path)


def test_names_of_signatures_and_inputs_of_a_request():
    assert check_names(["score", "beam"]) == ("serving_default", "beam", "score")
    assert check_names("beam") == ("serving_default", "beam")
    with pytest.raises(ValueError, match="Unknown signature 'beams': choose from serving_default,"):
        check_names(["beams"])
    score = {"source": ["a", "b"], "target": ["c", "d"]}
    assert make_inputs("score", *score.values()) == score
    assert make_inputs("score", ["a"])["target"] == ["a"]
    inputs = make_inputs("sample", ["a", "b"])
    assert inputs.pop("text") == ["a", "b"]
    assert inputs == {"temperature": [1, 1], "top_k": [0, 0], "top_p": [1, 1], "seed": [0, 1]}
    (ids,) = make_inputs("tokens", ["a"] * 3).values()
    assert len(ids) == 3 and min(map(min, ids)) == -1 and max(map(max, ids)) > 60_000


def test_card_describes_the_model(toy_version, translator):
    model, version = translator.model, importlib.metadata.version("tensorflow")
    card = read_card(toy_version)
    assert card["parameters"] == model.count_params() > 0
    assert card["architecture"]["d_model"] == model.d_model
    assert card["architecture"]["source_end"] is True and "dtype" not in card["architecture"]
    assert card["vocabulary"]["source"]["ids"] == model.source_vocabulary_size
    assert card["vocabulary"]["source"] == card["vocabulary"]["target"]
    assert len(card["vocabulary"]["source"]["sha256"]) == 64
    assert card["precision"] == {"computation": "float32", "weights": "float32"}
    assert card["versions"]["keras_transformer"] == kt.__version__
    assert card["versions"]["tensorflow"] == version
    minor = version.rpartition(".")[0]
    assert card["serve_with"].startswith(f"TF Serving {minor} or newer: TensorFlow {version} wrote")
    assert "`import tensorflow_text`" in card["load_with"]
    assert list(card["signatures"]) == list(check_names(kt.ExportConfig().signatures))
    beam = card["signatures"]["beam"]
    assert (beam["beam_size"], beam["length_norm"], beam["batchable"]) == (5, "gnmt", True)
    assert beam["outputs"]["text"] == {"dtype": "string", "shape": [None, None]}


def test_examples_are_those_of_the_pairs(toy_version, translator):
    card = read_card(toy_version)
    sources, targets = map(list, zip(*toy_pairs(40)[:3], strict=True))
    examples = {name: signature["example"] for name, signature in card["signatures"].items()}
    assert examples["serving_default"]["inputs"] == {"text": sources}
    assert examples["score"]["inputs"] == {"source": sources, "target": targets}
    assert examples["attention"]["inputs"] == {"text": sources[:1]}
    ids = translator.source_tokenizer(sources[:1]).to_list()
    assert examples["tokens"]["inputs"] == {"ids": ids}
    for name, example in examples.items():
        assert example["outputs"].keys() == card["signatures"][name]["outputs"].keys()
    assert examples["serving_default"]["outputs"]["text"] == translator.translate(sources)


def test_no_file_names_a_place(toy_version):
    written = os.path.dirname(os.path.dirname(toy_version))
    places = written, os.getcwd(), sys.prefix, os.path.expanduser("~")
    for path in filter(pathlib.Path.is_file, pathlib.Path(toy_version).rglob("*")):
        content = path.read_bytes()
        assert not [place for place in places if place.encode() in content], path


def test_search_of_an_export_is_in_its_card(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    assert versions.find_exported_search(tmp_path, 5) == SearchConfig()  # without a card
    beam = {"beam_size": 3, "length_penalty": 0.5, "length_norm": "length"}
    own = {"max_output_length": 4, "min_length": 2}
    card = own | {"signatures": {"beam": beam | {"batchable": True}}}
    reseal(tmp_path, lambda fields: fields.update(card))
    assert versions.find_exported_search(tmp_path, 1) == SearchConfig(**own)
    assert versions.find_exported_search(tmp_path, 2) == SearchConfig(**own, **beam)


def test_parts_of_another_type_are_named(tmp_path):
    wrong = dict(signatures=[1], precision={"computation": 7}, vocabulary={"source": "x"})
    for part, value in wrong.items():
        (tmp_path / "model.json").write_text(json.dumps({part: value}))
        with pytest.raises(ValueError, match=f"model.json.*{part}|model.json.*must be of the type"):
            read_card(tmp_path)


def test_fingerprint_by_hand():
    # printf 'a\tb\nc\td\n' | sha256sum
    pairs = [Pair("a", "b", ""), Pair("c", "d", "")]
    expected = "31530cb8906d527dbb5ee0624d8a4918233ce77f7a18b576909c0d40f8e202e2"
    assert fingerprint(pairs)["pairs"] == 2 and fingerprint(pairs)["sha256"] == expected
    assert fingerprint(pairs[::-1]) != fingerprint(pairs)
