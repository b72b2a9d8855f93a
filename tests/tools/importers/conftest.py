"""Models of other systems: one that is imported once for all, and copies to change."""

import json
import re
import shutil
import zipfile

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.vocabularies import rewrite
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from tests.support.command_line import succeeds
from tests.support.made_once import made_once
from tests.support.paths import FIXTURES
from tests.support.toy_steps import score

MARIAN = FIXTURES / "marian"


class Imported:
    """A fixture, imported as a run, and what its own system computed with it."""

    def __init__(self, folder, path, *described, **codes):
        self.answers = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
        self.original = read_source(folder, *described)
        self.run = kt.import_model(folder, path, *described, **codes)
        self.translator = kt.load(path, "float32")
        self.model = self.translator.model
        sides = self.original.source, self.original.target
        self.rows = [side.rows for side in rewrite(*sides)]  # their id of each of ours
        lines = self.answers["lines"]
        languages = self.translator.language_rows([""] * len(lines))
        self.source = np.array(self.translator.read_source(lines, languages)[0])
        count = len(self.answers["logits"])
        fed = [[kt.START, *self.target_ids(row[1:])] for row in self.answers["target"][:count]]
        self.inputs = self.source[:count], np.array(fed)

    def target_ids(self, ids):
        ours = {int(id): number for number, id in reversed([*enumerate(self.rows[1])])}
        return [ours[id] for id in ids]

    def check_ids_and_logits(self):
        found = [self.rows[0][row[row != kt.PAD]].tolist() for row in self.source]
        assert found == self.answers["ids"]
        kept = self.model.suppressed.numpy() == 0
        assert not kept[[kt.PAD, kt.START]].any() and kept[kt.END]
        expected = np.array(self.answers["logits"])[..., self.rows[1][kept]]
        found = np.array(self.model(self.inputs))[..., kept]
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-6)

    def check_search(self, theirs, longest, **options):
        """Finds what they do, rows of their ids, or what is more probable; returns log-probs."""
        search = kt.SearchConfig(**options)
        state = self.model.initial_state(self.source)
        arguments = self.model.make_step(), state, len(theirs), longest, search
        tokens, lengths, found = (np.array(x)[:, 0] for x in kt.search(*arguments))
        rows = [self.rows[1][row[:n]].tolist() for row, n in zip(tokens, lengths, strict=True)]
        same = [row == other for row, other in zip(rows, theirs, strict=True)]
        # Beams of others stop earlier, or leave out ends below their N best.
        assert all(same) if search.beam_size == 1 else sum(same) > len(same) / 2
        expected = self._log_probs([self.target_ids(row) for row in theirs])
        how = search.length_penalty, search.length_norm
        others = score(expected, np.array([*map(len, theirs)]), *how)
        assert (score(found, lengths, *how) > others - 1e-4).all()
        return found

    def _log_probs(self, rows):
        target = np.full((len(rows), 1 + max(map(len, rows))), kt.PAD)
        for number, row in enumerate(rows):
            target[number, : 1 + len(row)] = [kt.START, *row]
        logits = np.array(self.model((self.source, target[:, :-1])), "float64")
        logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        picked = np.take_along_axis(logits, target[:, 1:, None], -1)[..., 0]
        return np.where(target[:, 1:] == kt.PAD, 0.0, picked).sum(-1)

    def silent_weights(self):
        """Paths of weights without an effect on the logits, which a wrong one would not change.

        Softmax does not depend on what a bias of the keys adds to all scores of a query; ids are
        suppressed in decoding only.
        """
        before, silent = np.array(self.model(self.inputs)), []
        for weight in self.model.weights:
            value = weight.numpy()
            weight.assign(np.zeros_like(value))
            if np.abs(np.array(self.model(self.inputs)) - before).max() < 1e-3:
                silent.append(weight.path)
            weight.assign(value)
        return [path for path in silent if "key/bias" not in path and "suppressed" not in path]


@pytest.fixture(scope="session")
def imported(tmp_path_factory):
    """A folder with the run that `import` has made of a model, and what it has printed."""

    def make(folder):
        (folder / "printed").write_bytes(succeeds("import", MARIAN / "tied", folder / "run").stderr)

    return made_once(tmp_path_factory, "marian", make)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(MARIAN / "tied", tmp_path / "model")


def edit(path, **changes):
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))


def weights_of(folder, *described):
    model = read_source(folder, *described)
    sides = rewrite(model.source, model.target)
    transformer = kt.Transformer(*(len(x.rows) for x in sides), **vars(resolve_sharing(model)))
    transformer.build()
    load_weights(transformer, model, *sides)
    return transformer.get_weights()


def refused(folder, message, *described):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        weights_of(folder, *described)
    assert "\n" not in str(error.value)


def write_zip(path, entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path
