"""What several files of these tests share: exporting all signatures takes half a minute."""

import shutil

import pytest

from keras_transformer.serving.saved_model import export
from tests.support.stand_in_translator import StandIn
from tests.support.toy_translator import toy_pairs, trained_translator


@pytest.fixture(scope="session")
def toy_version(tmp_path_factory):
    """The half-trained toy as `export` publishes it by default: leave it as it is."""
    return export(trained_translator(), tmp_path_factory.mktemp("toy"), pairs=toy_pairs(40))


@pytest.fixture(scope="module")
def translator():
    """Made anew for each file: tests of others empty the cache that holds its tokenizer's model."""
    return StandIn()


@pytest.fixture(scope="session")
def version_dir(tmp_path_factory):
    """Its export, moved away from where it was written: leave it as it is."""
    path = export(StandIn(), tmp_path_factory.mktemp("written") / "model")
    elsewhere = tmp_path_factory.mktemp("moved") / "5"
    shutil.move(path, elsewhere)
    return elsewhere
