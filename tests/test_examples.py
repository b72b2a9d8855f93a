"""The examples in the docstrings run, and give what they say."""

import ast
import contextlib
import doctest
import importlib
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import examples

DOCSTRINGS = examples.docstrings_with_examples()
# What they find beside a trained run: these begin with an export or a corpus ...
EXPORTED = ("load_saved_model", "check_structure", "check", "ServerProcess")
PREPARED = ("PreparedCorpus",)
# ... and these make theirs in the place that others find it in.
MAKING = {"export": "export", "prepare": "corpora"}
# What is run, but not compared, and why.
NOT_COMPARED = {
    "training.word_vectors.initialize_embeddings": "what GloVe covers of English",
    "serving.server_process.ServerProcess": "a log-probability, of another training",
}
# Exports and what opens them take tens of seconds in all.
SLOW = (*EXPORTED, "export", "export_ctranslate2")


def parameters():
    for name in DOCSTRINGS:
        marks = [pytest.mark.slow] if name.rpartition(".")[2] in SLOW else []
        yield pytest.param(name, marks=marks)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A folder of a user's files, and names; the model's weights are put back by `example`."""
    with contextlib.chdir(tmp_path_factory.mktemp("examples")):
        examples.write_files()
        examples.make_run()
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


@pytest.mark.parametrize("name", list(parameters()))
def test_example(name, names):
    module, docstring = DOCSTRINGS[name]
    last = name.rpartition(".")[2]
    if last in EXPORTED:
        examples.make_export(names)
    if last in PREPARED:
        examples.make_corpus()
    if last in MAKING:
        shutil.rmtree(MAKING[last], ignore_errors=True)
    names = vars(importlib.import_module(module)) | names
    for example in doctest.DocTestParser().get_examples(docstring):
        if not example.want or name in NOT_COMPARED:
            exec(example.source, names)
            continue
        wanted = re.sub(r", dtype=\w+", "", example.want.replace("array(", "("))
        value = eval(example.source, names)
        assert equal(value, ast.literal_eval(wanted.strip())), f"{example.source}gives {value}"


def test_checks_can_fail():
    assert not equal([b"1998-05-09"], [b"1998-05-10"])
    assert not equal((2, 10), (2, 11)) and not equal(np.ones(2), [1.0, 1.1])
    assert not equal((np.ones(2), np.ones(1)), ([1, 1], [2])) and not equal("a", 1)


def test_lists_name_examples():
    last = {name.rpartition(".")[2] for name in DOCSTRINGS}
    assert {*EXPORTED, *PREPARED, *MAKING, *SLOW} <= last and set(NOT_COMPARED) <= set(DOCSTRINGS)
    assert len(last & set(kt.__all__)) > 50
