"""With JAX as Keras' backend: what runs, and what says that it cannot."""

import os
import subprocess
import sys

import pytest

from tests.support.layer_harness import require_jax
from tests.support.paths import ROOT

CODE = """
import keras, numpy as np
import keras_transformer as kt

def refused(call, message):
    try:
        call()
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

# Beside TensorFlow: from text to batches, and a search, which finds what the model ranks first.
tokenizer = kt.SubwordTokenizer.train(["abAB"], model_type="char")
pairs = [("ab", "AB"), ("b", "B"), ("abb", "ABB")]
data = kt.make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=64, max_length=8)
((source, _), _) = next(data.as_numpy_iterator())
V = tokenizer.vocabulary_size
model = kt.Transformer(V, V, num_layers=1, d_model=4, num_heads=1, d_ff=4, dropout=0.0)
model.build()
rows = len(source)
tokens = np.array(kt.greedy_search(model.step, model.initial_state(source), rows, 2)[0])
prefix = np.concatenate([np.full((rows, 1), kt.START), tokens[:, :-1]], axis=1)
live = tokens != kt.PAD
assert live.any() and (np.array(model((source, prefix))).argmax(-1) == tokens)[live].all(), tokens

# The loss and the metrics by their names.
model.compile("sgd", "smoothed_cross_entropy", metrics=["masked_accuracy"])
assert type(model.loss) is kt.SmoothedCrossEntropy

# TensorFlow's alone.
not_on_jax = "needs Keras' TensorFlow backend, this is jax"
refused(lambda: kt.Translator(model, tokenizer, tokenizer), f"Translator {not_on_jax}")
refused(lambda: kt.make_strategy("auto"), f"make_strategy {not_on_jax}")
refused(lambda: model.compile("sgd", "mse", clip_norm=1.0), "need Keras' TensorFlow backend")
"""


@pytest.mark.slow
def test_jax():
    require_jax()
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
