"""A run whose vocabulary has words that would do harm if read as HTML."""

import contextlib
import threading

import pytest

from keras_transformer.runs.opening import Opened
from keras_transformer.runs.run import Run
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tools.explorer.server import ExploredRun, ExplorerServer, listen
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
def explored_run(word_translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("explored") / "<b>base"
    path.mkdir()
    saved.write(path, [word_translator.source_tokenizer, word_translator.target_tokenizer])
    Run(path).write_model(word_translator.model, {})
    return path


@contextlib.contextmanager
def serving(path):
    """The explorer's page of a run while it is served."""
    with serving_model(ExploredRun(Opened(path))) as explorer:
        yield explorer


@contextlib.contextmanager
def serving_model(model):
    """The explorer's page of a model while a thread serves it."""
    with listen() as listening:
        explorer = ExplorerServer(model, listening)
        thread = threading.Thread(target=explorer.run, args=(False,))
        thread.start()
        try:
            yield explorer
        finally:
            explorer.server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def explorer(explored_run):
    with serving(explored_run) as server:
        yield server
