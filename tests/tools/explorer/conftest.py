"""An export with `explore`, whose vocabulary has words that would do harm if read as HTML."""

import contextlib

import pytest

from keras_transformer.presets import ExportConfig
from keras_transformer.serving.saved_model import _save
from keras_transformer.serving.served_translator import functions_of
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tools.explorer.server import listen, open_explorer
from tests.support.toy_translator import random_translator

HOSTILE = ("<img/src=x/onerror=document.title='hacked'>", "<script>document.title=1</script>")
WORDS = ("one", "two", "three", "four", "\u0645\u0631\u062d\u0628\u0627", "\u4eca\u65e5", *HOSTILE)


@pytest.fixture(scope="session")
def word_translator():
    """Random weights; each word is a piece."""
    lines = [" ".join(WORDS)] * 9
    tokenizer = SubwordTokenizer.train(lines, vocabulary_size=4 + len(WORDS), model_type="word")
    return random_translator(tokenizer, num_layers=3, max_length=24, seed=5)


@pytest.fixture(scope="session")
def explored_version(word_translator, tmp_path_factory):
    """Saved without the trial of an export, which takes longer than the saving."""
    config = ExportConfig(signatures=("beam", "sample", "explore"), beam_size=3)
    path = tmp_path_factory.mktemp("explored") / "<b>base" / "1"
    _save(*functions_of(word_translator, config), path)
    return path


@contextlib.contextmanager
def serving(path):
    """The explorer's page of a model while it is served."""
    with listen() as listening, open_explorer(path, listening) as explorer:
        yield explorer


@pytest.fixture(scope="module")
def explorer(explored_version):
    with serving(explored_version) as server:
        yield server
