"""An explorer of a run whose words would do harm if read as HTML, and how to ask it."""

import contextlib
import http.client
import json
import threading
import urllib.parse

import pytest

from keras_transformer.runs.opening import Opened
from keras_transformer.runs.run import Run
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tools.explorer.server import ExploredRun, ExplorerServer, listen
from tests.support.toy_translator import random_translator, without_graphs

HOSTILE = ("<img/src=x/onerror=document.title='hacked'>", "<script>document.title=1</script>")
WORDS = ("one", "two", "three", "four", "\u0645\u0631\u062d\u0628\u0627", "\u4eca\u65e5", *HOSTILE)
EXAMPLES = ("four two", " ", "one", "four two", "two", "three", "one two")


@pytest.fixture(scope="package")
def word_translator():
    tokenizer = SubwordTokenizer.train([" ".join(WORDS)] * 9, 4 + len(WORDS), model_type="word")
    return without_graphs(random_translator(tokenizer, num_layers=3, max_length=24, seed=5))


@contextlib.contextmanager
def serving_model(model):
    with listen() as listening:
        explorer = ExplorerServer(model, listening)
        thread = threading.Thread(target=explorer.run, args=(False,))
        thread.start()
        try:
            yield explorer
        finally:
            explorer.server.shutdown()
            thread.join()


@pytest.fixture(scope="package")
def explored_run(word_translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("explored") / "<b>base"
    path.mkdir()
    saved.write(path, [word_translator.source_tokenizer, word_translator.target_tokenizer])
    Run(path).write_model(word_translator.model, {})
    Run(path).write_examples([(source, "") for source in EXAMPLES])
    return path


@pytest.fixture(scope="package")
def explorer(explored_run):
    with serving_model(ExploredRun(Opened(explored_run))) as server:
        yield server


def send(address, method, name, body=None, path=None, **headers):
    """Status, headers and body of the answer to one request."""
    address = urllib.parse.urlsplit(address)
    headers = {key.replace("_", "-"): value for key, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=60)) as connection:
        connection.request(method, address.path + name if path is None else path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def ask(explorer, question, request=None, status=200, **headers):
    headers["Content_Type"], body = "application/json", json.dumps(request or {})
    found, _, answer = send(explorer.address, "POST", f"ask/{question}", body, **headers)
    assert found == status, answer
    return json.loads(answer)
