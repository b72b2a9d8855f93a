"""Models of Marian: one that is imported once for all, and copies to change."""

import json
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.vocabularies import rewrite
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from tests.support.command_line import run
from tests.support.made_once import made_once
from tests.support.marian_models import FOLDER


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """A folder with the run that `import` has made of a model, and what it has printed."""

    def make(folder):
        result = run("import", FOLDER / "tied", folder / "run")
        assert result.returncode == 0, result.stderr.decode()
        (folder / "printed").write_bytes(result.stderr)

    return made_once(tmp_path_factory, "marian", make)


@pytest.fixture
def folder(tmp_path):
    """A copy of a model of Hugging Face that can be imported."""
    return shutil.copytree(FOLDER / "tied", tmp_path / "model")


def edit(path, **changes):
    """Changes options in a JSON file."""
    options = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(options | changes))


def weights_of(folder, *described):
    """The weights of the model that a folder is imported as, in memory."""
    model = read_source(folder, *described)
    sides = rewrite(model.source, model.target)
    transformer = kt.Transformer(*(len(x.rows) for x in sides), **vars(resolve_sharing(model)))
    transformer.build()
    load_weights(transformer, model, *sides)
    return transformer.get_weights()


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def silent_weights(model, inputs):
    """Paths of weights without an effect on the logits, which a wrong one would not change.

    Softmax does not depend on what a bias of the keys adds to all scores of a query; ids are
    suppressed in decoding only.
    """
    before, silent = np.array(model(inputs)), []
    for weight in model.weights:
        value = weight.numpy()
        weight.assign(np.zeros_like(value))
        if np.abs(np.array(model(inputs)) - before).max() < 1e-3:
            silent.append(weight.path)
        weight.assign(value)
    return [path for path in silent if "key/bias" not in path and "suppressed" not in path]
