"""A model of users' own around single layers: a language model."""

import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support import child_process
from tests.support.layer_harness import TOLERANCES, assert_close, randomize

TEXT = ["to be, or not to be", "that is the question", "whether it is nobler", "to be that is"]
CHARACTERS = sorted(set("".join(TEXT)))
IDS = {character: 4 + i for i, character in enumerate(CHARACTERS)}
V, D, LENGTH = 4 + len(CHARACTERS), 16, 24


@keras.saving.register_keras_serializable("tests")
class LanguageModel(keras.Model):
    """Characters, each predicted from those before; the softmax is the embedding's."""

    def __init__(self, norm="post", **kwargs):
        super().__init__(**kwargs)
        self.norm = norm
        self.embedding = kt.PositionalEmbedding(V, D, dtype=self.dtype_policy)
        self.decoder = kt.Decoder(
            2, D, 2, 32, dropout=0.0, norm=norm, cross_attention=False, dtype=self.dtype_policy
        )

    def call(self, ids):
        return self.embedding.logits(self.decoder(self.embedding(ids)))

    def step(self, ids, position, state):
        x = self.embedding(ids[:, None], start=position)[:, 0]
        x, state = self.decoder.step(x, position, state)
        return self.embedding.logits(x), state

    def get_config(self):
        return super().get_config() | {"norm": self.norm}


def rows():
    """Each text between START and END, padded; what is read and what is to be predicted."""
    table = np.zeros((len(TEXT), LENGTH), "int32")
    for row, text in zip(table, TEXT, strict=True):
        ids = [kt.START, *map(IDS.get, text), kt.END]
        row[: len(ids)] = ids
    return table[:, :-1], table[:, 1:]


def text_of(tokens):
    return ["".join(CHARACTERS[i - 4] for i in row if i >= 4) for row in np.array(tokens)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    keras.utils.set_random_seed(1)
    model = LanguageModel()
    model.compile(keras.optimizers.Adam(1e-2), kt.SmoothedCrossEntropy(0.0))
    x, y = rows()
    model.fit(x, y, epochs=100, verbose=0)
    return model


def untrained(norm="post", policy="float32"):
    model = LanguageModel(norm, dtype=policy)
    model(rows()[0])
    return randomize(model)


@pytest.mark.parametrize(
    "norm, policy, room",
    [
        ("post", "float32", None),
        ("pre", "float32", LENGTH),
        ("post", "mixed_bfloat16", LENGTH),
        ("pre", "mixed_float16", None),
    ],
)
def test_step_by_step_is_one_pass(norm, policy, room):
    model = untrained(norm, policy)
    x, _ = rows()
    x = np.where(x == 0, 5, x)  # no padding: a step does not know of it
    state, logits = model.decoder.initial_state(len(x), room), []
    for position in range(x.shape[1]):
        of_step, state = model.step(x[:, position], position, state)
        logits.append(of_step)
    expected = keras.ops.cast(model(x), "float32")
    logits = keras.ops.cast(keras.ops.stack(logits, axis=1), "float32")
    assert_close(logits, np.array(expected), 2 * TOLERANCES[policy])


def test_learns_its_texts_and_tells_them(trained):
    """From "t" on it can only be one of the texts: greedily the likeliest, sampled each of them."""
    prefix = np.array([[IDS[c] for c in beginning] for beginning in ("th", "wh")])
    state = trained.decoder.initial_state(2)
    tokens, lengths, log_prob = kt.greedy_search(trained.step, state, 2, LENGTH, prefix)
    assert text_of(tokens) == [TEXT[1], TEXT[2]]
    assert list(lengths) == [len(TEXT[1]) + 1, len(TEXT[2]) + 1]
    best, _, of_best = kt.beam_search(
        trained.step, trained.decoder.initial_state(2), 2, LENGTH, beam_size=3, prefix=prefix
    )
    assert text_of(best[:, 0]) == [TEXT[1], TEXT[2]]
    assert_close(of_best[:, 0], log_prob, 1e-4)
    drawn, _, _ = kt.sample(trained.step, trained.decoder.initial_state(40), 40, LENGTH, seed=3)
    assert set(text_of(drawn)) >= set(TEXT)


def test_xla_finds_the_same(trained):
    @tf.function(jit_compile=True)
    def tell():
        state = trained.decoder.initial_state(2, LENGTH)
        return kt.greedy_search(trained.step, state, 2, LENGTH, fixed_shapes=True)

    tokens, _, log_prob = tell()
    state = trained.decoder.initial_state(2)
    expected, _, of_expected = kt.greedy_search(trained.step, state, 2, LENGTH)
    assert text_of(tokens) == text_of(expected)
    assert_close(log_prob, np.array(of_expected), 1e-4)


def test_saved_and_exported(trained, tmp_path):
    """The model loads without custom objects; its sampling runs where neither Keras nor XLA is."""
    trained.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x, _ = rows()
    assert_close(loaded(x), np.array(trained(x)), 1e-6)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
    def tell(seeds):
        count = tf.shape(seeds)[0]
        state = loaded.decoder.initial_state(count)
        return kt.sample(loaded.step, state, count, LENGTH, seed=seeds)[0]

    module = tf.Module()
    module.tell, module.variables_to_save = tell, [weight.value for weight in loaded.weights]
    tf.saved_model.save(module, str(tmp_path / "exported"), signatures={"tell": tell})
    seeds = [3, 1, 4]
    script = (
        "import json, sys, tensorflow as tf\n"
        "tell = tf.saved_model.load(sys.argv[1]).signatures['tell']\n"
        "(tokens,) = tell(tf.constant(json.loads(sys.argv[2]), tf.int64)).values()\n"
        "print(json.dumps([tokens.numpy().tolist(), 'keras_transformer' in sys.modules]))\n"
    )
    result = child_process.run(
        [sys.executable, "-W", "ignore", "-c", script, tmp_path / "exported", json.dumps(seeds)],
        capture_output=True,
        check=True,
        env={"PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_XLA_FLAGS": "--tf_xla_auto_jit=-1"},
    )
    tokens, knows_us = json.loads(result.stdout)
    assert not knows_us
    assert text_of(tokens) == text_of(tell(tf.constant(seeds, tf.int64)))
    graph = (tmp_path / "exported" / "saved_model.pb").read_bytes()
    assert b"Xla" not in graph and b"Assert" not in graph
