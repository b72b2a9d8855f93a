"""One translator and its export of all signatures, the same for the tests of all processes."""

import functools
import json
import shutil

import pytest

import keras_transformer as kt
from keras_transformer.serving.server_process import ServerProcess
from tests.support.made_once import made_once
from tests.support.stand_in_translator import StandIn
from tests.support.toy_translator import save_run, toy_pairs, trained_translator


@pytest.fixture(scope="session")
def translator(tmp_path_factory):
    """The half-trained toy, read from a run directory: do not change its weights."""
    toy = functools.partial(save_run, trained_translator())
    return kt.load(made_once(tmp_path_factory, "toy-run", toy), "float32")


@pytest.fixture(scope="session")
def toy_version(translator, tmp_path_factory):
    """Its export, moved from where it was written: leave it as it is."""

    def write(folder):
        found = []
        kt.export(translator, folder, pairs=toy_pairs(40), report=found.extend)
        (folder / "findings.json").write_text(json.dumps(found))

    return str(made_once(tmp_path_factory, "toy-export", write) / "1")


@pytest.fixture(scope="session")
def server(toy_version):
    with ServerProcess(toy_version) as process:
        yield process


@pytest.fixture(scope="module")
def stand_in():
    """Made anew for each file: tests of others empty the cache that holds its tokenizer's model."""
    return StandIn()


@pytest.fixture(scope="session")
def stand_in_version(tmp_path_factory):
    """Its export, moved away from where it was written: leave it as it is."""
    path = kt.export(StandIn(), tmp_path_factory.mktemp("written") / "model")
    elsewhere = tmp_path_factory.mktemp("moved") / "5"
    shutil.move(path, elsewhere)
    return elsewhere
