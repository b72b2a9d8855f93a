"""What several files of these tests share: exporting all signatures takes half a minute."""

import pytest

from keras_transformer.serving.saved_model import export
from tests.support.toy_translator import toy_pairs, trained_translator


@pytest.fixture(scope="session")
def toy_version(tmp_path_factory):
    """The half-trained toy as `export` publishes it by default: leave it as it is."""
    return export(trained_translator(), tmp_path_factory.mktemp("toy"), pairs=toy_pairs(5))
