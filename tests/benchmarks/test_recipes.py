"""`benchmarks/recipes.py` on a toy corpus: it prepares, trains with JAX, translates and reports."""

import gzip
import itertools
import json
import os
import sys

import numpy as np
import pytest

from benchmarks import recipes
from tests.support import child_process
from tests.support.paths import ROOT

# Without dropout the two passes are equal, and R-Drop adds nothing to the loss.
LOSS = """
import json, sys
import numpy as np
from benchmarks import recipes
import keras_transformer as kt

folder, job = sys.argv[1], json.loads(sys.argv[2])
trainer = recipes.Trainer(job, recipes.Data(folder, job["vocabulary"]))
length, rows = next(trainer.data.batches(1))
ids = [trainer.ids[f"train_{side}"][rows, :length] for side in ("source", "target")]
source, target = map(np.asarray, ids)
given = np.pad(target, [(0, 0), (1, 0)], constant_values=recipes.START)[:, :-1]
expected = []
for theta in trainer.state["theta"]:
    weights = zip(trainer.model.trainable_variables, trainer.unravel(theta), strict=True)
    for variable, value in weights:
        variable.assign(value)
    logits = np.asarray(trainer.model((source, given), training=False), "float64")
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    label = np.take_along_axis(log, target[..., None], -1)[..., 0]
    smoothing = trainer.variants[len(expected)]["label_smoothing"]
    losses = (smoothing - 1) * label - smoothing * log.mean(-1)
    expected.append(losses[target != recipes.PAD].mean())
np.testing.assert_allclose(trainer.step(0, length, rows), expected, rtol=1e-5)
assert len(set(expected)) == 3
# The last variant is the first, but its learning rate falls to half in the second of two steps.
before = np.asarray(trainer.state["theta"])
np.testing.assert_array_equal(before[0], before[3])
trainer.step(1, length, rows)
change = np.asarray(trainer.state["theta"]) - before
np.testing.assert_allclose(change[3], change[0] / 2, rtol=0, atol=1e-7)
assert np.abs(change[0]).max() > 1e-6
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A prepared corpus with vocabularies of 272 tokens: of tokens, of raw text, and sampled."""
    folder, corpora = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("corpora")
    for name, ending in recipes.ENDINGS.items():
        (corpora / name).mkdir()
        for part, language in itertools.product(recipes.PARTS.values(), ("en", "de")):
            with gzip.open(corpora / name / f"{part}{ending}.{language}.gz", "wt") as file:
                words = [chr(97 + i % 5) * (1 + i % 3) for i in range(20)]
                file.writelines(f"{language} and {word} again\n" for word in words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "CORPUS", str(corpora))
        patch.setattr(recipes, "VOCABULARIES", {"tok": (272,), "raw": (272,)})
        patch.setattr(recipes, "SAMPLED", (272,))
        recipes.prepare(folder)
        yield folder


def job(**model):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 8, "dtype": "float32"}
    variants = [{"seed": 1}, {"seed": 2, "rdrop": 1.0}]
    return {"name": "toy", "vocabulary": 272, "model": sizes | model, "steps": 2} | {
        "variants": variants
    }


def python(*arguments):
    """Runs Python with Keras' JAX backend; returns what it prints."""
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, arguments)]
    done = child_process.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ordeal
def test_loss_without_dropout_is_the_smoothed_cross_entropy_per_target_token(data):
    variants = [{"seed": 1}, {"seed": 2, "rdrop": 1.0}, {"seed": 2, "label_smoothing": 0.3}]
    variants.append({"seed": 1, "cooldown_steps": 2})
    python("-c", LOSS, data, json.dumps(job(dropout=0.0) | {"variants": variants}))


@pytest.mark.ordeal
def test_jobs_are_trained_and_reported(data, tmp_path, capsys):
    common = {"learning_rate": 0.03, "ema": 0.9}
    variants = [{"seed": 1} | common, {"seed": 2, "rdrop": 1.0} | common]
    toy = job(d_model=32, dropout=0.0) | {"steps": 300, "variants": variants, "data": "272-raw"}
    (tmp_path / "jobs.json").write_text(json.dumps([toy]))
    run = ["-m", "benchmarks.recipes", "run", data, tmp_path / "jobs.json", tmp_path / "out"]
    printed = python(*run, 500, 1)
    assert "| toy learning_rate=0.03 ema=0.9 | 22,800 | 1 |" in printed
    assert "| toy rdrop=1.0 learning_rate=0.03 ema=0.9 | 22,800 | 2 |" in printed
    (result,) = json.loads((tmp_path / "out/results.json").read_text())
    assert [one["300"]["step"] for one in result["results"]] == [300, 300]
    assert all(one["300"]["valid"] > 20 for one in result["results"])
    assert python("-m", "benchmarks.recipes", "table", tmp_path / "out") in printed
    # `Translator` finds the translations that the program's own beam search has found.
    recipes.translate(data, tmp_path / "out")
    rows = [line.split(" | ")[1:] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1.4", "0.6"] * 2
    scores = [one["300"] for one in result["results"]]
    found = sorted((f"{one['valid']:.2f}", f"{one['test']:.2f} |") for one in scores)
    assert sorted(tuple(row[1:]) for row in rows[::2]) == found


def batches(data, count, *options):
    """The batches of a corpus, as pairs of ids, and its arrays."""
    corpus = recipes.Data(data, *options)
    source, target = (corpus.ids[f"train_{side}"] for side in ("source", "target"))
    rows = [rows for _, rows in itertools.islice(corpus.batches(1), count)]
    return [(source[some], target[some]) for some in rows], source, target


def test_first_steps_have_both_directions(data):
    found, source, target = batches(data, 2, 272, 1)
    assert len(source) == 41
    np.testing.assert_array_equal(source[:20], target[20:40])
    np.testing.assert_array_equal(target[:20], source[20:40])
    assert [np.count_nonzero(ids[:, 0]) for ids, _ in found] == [40, 20]


def test_sampled_passes_differ(data):
    found, source, _ = batches(data, 17, "272-sampled")
    assert len(source) == 20 * recipes.SAMPLES + 1
    lengths = [np.count_nonzero(ids) for ids, _ in found]
    assert len(set(lengths)) > 1 and lengths[0] == lengths[16]
