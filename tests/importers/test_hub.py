"""Models by their names on the Hugging Face Hub."""

import sys

import pytest

import keras_transformer as kt
from keras_transformer.importers import importing
from tests.support.command_line import refused
from tests.support.marian_models import FOLDER


def test_without_the_package_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(["import", "owner/model", tmp_path / "run"], "pip install huggingface_hub")


def test_offline_it_is_one_sentence(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    refused(["import", "owner/model", tmp_path / "run"], "cannot be downloaded from the Hub")


def test_what_is_downloaded_is_imported_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_download", lambda name: str(FOLDER / "tied"))
    run = kt.import_model("owner/model", tmp_path / "run")
    assert run.read_config().imported.source == "owner/model"
