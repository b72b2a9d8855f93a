"""The examples in the docstrings run, and give what they say."""

import ast
import contextlib
import doctest
import importlib
import os
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import examples

DOCSTRINGS = examples.docstrings_with_examples()
# What they find beside a trained run: these begin with an export, and others make what is found.
EXPORTED = ("load_saved_model", "check_structure", "check", "ServerProcess")
MAKING = {"export": "export", "prepare": "corpora"}
# What is run, but not compared, and why.
NOT_COMPARED = {
    "training.word_vectors.initialize_embeddings": "what GloVe covers of English",
    "serving.server_process.ServerProcess": "a log-probability, of another training",
}
SLOW = (*EXPORTED, "export")


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A folder of a user's files, and names; the model's weights are put back by `names`."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(examples.user_files(tmp_path_factory), folder, dirs_exist_ok=True)
    with contextlib.chdir(folder):
        yield examples.make_names()


@pytest.fixture
def names(context):
    """Names for one example, which finds the weights that were trained."""
    weights = context["model"].get_weights()
    yield dict(context)
    plt.close("all")
    context["model"].set_weights(weights)
    context["model"].parallel_microbatches = 1


def equal(value, wanted):
    """Numbers to the digits that examples show."""
    if isinstance(wanted, tuple) and all(isinstance(one, tuple | list) for one in wanted):
        return all(map(equal, value, wanted))
    if type(value) is type(wanted) and value == wanted:
        return True
    if isinstance(wanted, tuple):
        return tuple(value) == wanted
    numbers = np.array(value), np.array(wanted)
    return numbers[0].dtype.kind in "bif" and np.allclose(*numbers, atol=1e-4, rtol=1e-3)


def last(name):
    return name.rpartition(".")[2]


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (last(x) in SLOW)) for x in DOCSTRINGS]
)
def test_example(name, names, monkeypatch):
    module, docstring = DOCSTRINGS[name]
    if last(name) in (*EXPORTED, "export"):  # of the one signature that they ask
        config = kt.ExportConfig(signatures=())
        monkeypatch.setattr(kt.ExportConfig, "for_search", lambda _: config)
    if last(name) in EXPORTED and not os.path.exists("export/models/dates/1"):
        kt.export(names["translator"], "export/models/dates")
    if last(name) == "PreparedCorpus" and not os.path.exists("corpora/ende"):
        config = kt.PrepareConfig("part-*.en.gz", "part-*.de.gz", valid_fraction=0.001)
        kt.prepare(config, "corpora/ende", processes=1)
    if last(name) in MAKING:
        shutil.rmtree(MAKING[last(name)], ignore_errors=True)
    names = vars(importlib.import_module(module)) | names
    for example in doctest.DocTestParser().get_examples(docstring):
        if not example.want or name in NOT_COMPARED:
            exec(example.source, names)
            continue
        wanted = re.sub(r", dtype=\w+", "", example.want.replace("array(", "("))
        value = eval(example.source, names)
        assert equal(value, ast.literal_eval(wanted.strip())), f"{example.source}gives {value}"


def test_checks_can_fail_and_lists_name_examples():
    for value, wanted in (([b"a"], [b"b"]), (np.ones(2), [1.0, 1.1]), ("a", 1), ((2, 10), (2, 11))):
        assert not equal(value, wanted)
    assert {*EXPORTED, *MAKING, *SLOW, "PreparedCorpus"} <= set(map(last, DOCSTRINGS))
    assert {*NOT_COMPARED} <= {*DOCSTRINGS}
