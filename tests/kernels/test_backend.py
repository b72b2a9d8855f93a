"""With JAX as Keras' backend: what runs, and what says that it cannot."""

import pytest

from tests.support.command_line import python
from tests.support.layer_harness import require_jax

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
rows = len(source)
tokens = np.array(kt.greedy_search(model.step, model.initial_state(source), rows, 2)[0])
prefix = np.concatenate([np.full((rows, 1), kt.START), tokens[:, :-1]], axis=1)
live = tokens != kt.PAD
assert live.any() and (np.array(model((source, prefix))).argmax(-1) == tokens)[live].all(), tokens

# The loss and a metric.
model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=[kt.MaskedAccuracy()])

# Labels: negative ones are ignored, wrong ones refused, or NaN in a compiled step.
x = np.full((2, 3), 5), np.full((2, 3), 5)
y, weights = np.array([[4, 3, 0], [3, 0, 0]]), model.get_weights()
losses = [model.evaluate(x, labels, verbose=0) for labels in (y, np.where(y, y, -100), y + 0.0)]
np.testing.assert_allclose(losses, [losses[0]] * 3, rtol=1e-6)
losses = []
for labels in (y, np.where(y, y, -100)):
    model.set_weights(weights)
    losses.append(model.fit(x, labels, epochs=2, verbose=0).history["loss"])
np.testing.assert_allclose(*losses, rtol=1e-6)
wrong = np.where(y == 4, V, y)
refused(lambda: model.loss(wrong, np.zeros((2, 3, V))), f"received the label {V}")
import tensorflow as tf
assert np.isnan(model.evaluate(tf.data.Dataset.from_tensors((x, wrong)), verbose=0)).all()
refused(lambda: model.compile("sgd", "sparse_categorical_crossentropy"), "returns logits")

# Relative positions in functional models of unknown length.
for positions in ("relative", "bucketed", "disentangled", "rotary"):
    inputs = keras.Input((None, 8))
    functional = keras.Model(inputs, kt.Encoder(1, 8, 2, 16, positions=positions)(inputs))
    values = np.random.default_rng(0).normal(size=(2, 5, 8))
    np.testing.assert_allclose(functional(values), functional.layers[-1](values), atol=1e-6)

# TensorFlow's alone.
not_on_jax = "needs Keras' TensorFlow backend, this is jax"
refused(lambda: kt.Translator(model, tokenizer, tokenizer), f"Translator {not_on_jax}")
refused(lambda: kt.make_strategy("auto"), f"make_strategy {not_on_jax}")
refused(lambda: model.compile("sgd", "mse", clip_norm=1.0), "needs Keras' TensorFlow backend")

# Last, since Keras takes the weights of a model away where a step on JAX raises.
refused(lambda: model.evaluate(x, y[:, :1], verbose=0), "received shape (2, 1)")
"""


@pytest.mark.slow
def test_jax():
    require_jax()
    python("-c", CODE, KERAS_BACKEND="jax")
