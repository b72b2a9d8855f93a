"""All ways of searching by one interface, and with a model: batch = single, forced beginnings."""

import dataclasses
import inspect
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import beam_search, greedy_search, sample, search
from keras_transformer.presets import GREEDY, ExportConfig, SearchConfig
from keras_transformer.special_ids import END, PAD, START
from tests.support.toy_steps import Toy, hypotheses, log_softmax
from tests.support.toy_translator import MAX_LENGTH, SOURCES, toy_pairs, trained_translator

CONFIGS = {
    "greedy": GREEDY,
    "beam": SearchConfig(beam_size=4, length_penalty=0.0),
    "exact beam": SearchConfig(beam_size=3, beam_patience=math.inf),
    "sampling": SearchConfig(sample=True, temperature=0.8, top_k=5, top_p=0.9),
}


def test_each_method_is_reached():
    step = Toy(4, 8, 1, end=1.0)
    arguments = step, step.state, 4, 9
    prefix = np.array([[5, 6], [6, PAD], [PAD, PAD], [5, END]])
    for forced in (None, prefix):
        expected = {
            "greedy": [x[:, None] for x in greedy_search(*arguments, forced)],
            "beam": beam_search(*arguments, 4, 0.0, forced),
            "exact beam": beam_search(*arguments, 3, prefix=forced, beam_patience=math.inf),
            "sampling": [x[:, None] for x in sample(*arguments, 0.8, 5, 0.9, 1, forced)],
        }
        for name, config in CONFIGS.items():
            found = search(*arguments, config, forced)
            assert hypotheses(*found) == hypotheses(*expected[name]), name
    seeds = tf.constant([9, 8, 7, 6])
    found = search(*arguments, CONFIGS["sampling"], seeds=seeds)
    expected = sample(*arguments, 0.8, 5, 0.9, seeds)
    assert hypotheses(*found) == hypotheses(*(x[:, None] for x in expected))


# With a model.


@pytest.fixture(scope="module")
def model():
    return trained_translator().model


@pytest.fixture(scope="module")
def sources():
    ids = trained_translator().source_tokenizer([text for text in SOURCES if text])
    return tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1).to_tensor(PAD).numpy()


def score(model, source, tokens):
    """Float64 log-probability of a target, by one pass of the model."""
    target = np.array([[START, *tokens[:-1]]])
    logits = keras.ops.convert_to_numpy(model((source[np.newaxis], target)))[0]
    return sum(log_softmax(row)[token] for row, token in zip(logits, tokens, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_do_not_depend_on_their_batch(name, model, sources):
    prefix = np.full((len(sources), 3), PAD)
    for row in range(0, len(sources), 2):  # the others are free
        prefix[row, : row // 2 % 3 + 1] = sources[row, 0]
    seeds = np.arange(len(sources)) + 10

    @tf.function(reduce_retracing=True)
    def decode(source, seeds, prefix):
        state = model.initial_state(source)
        rows = tf.shape(source)[0]
        return search(model.step, state, rows, MAX_LENGTH, CONFIGS[name], prefix, seeds)

    together = hypotheses(*decode(sources, seeds, prefix))
    assert len({len(row[0][1]) for row in together}) > 2
    for i, source in enumerate(sources):
        alone = hypotheses(*decode(source[None, source != PAD], seeds[[i]], prefix[[i]]))[0]
        assert [tokens for _, tokens in alone] == [tokens for _, tokens in together[i]]
        assert [h[0] for h in alone] == pytest.approx([h[0] for h in together[i]], abs=1e-4)
        wanted = prefix[i][prefix[i] != PAD].tolist()
        for log_prob, tokens in alone:
            assert tokens[: len(wanted)] == wanted
            assert log_prob == pytest.approx(score(model, source, tokens), abs=1e-4)


@pytest.mark.parametrize("name", ["greedy", "beam", "sampling"])
def test_fixed_shapes_under_xla_change_nothing(name, model, sources):
    """Caches with room and tokens of full width find what growing ones find."""
    prefix = np.full((len(sources), 2), PAD)
    prefix[::2, 0] = sources[::2, 0]
    seeds = np.arange(len(sources)) + 10

    def decode(fixed_shapes):
        state = model.initial_state(sources, MAX_LENGTH if fixed_shapes else None)
        arguments = len(sources), MAX_LENGTH, CONFIGS[name], prefix, seeds, fixed_shapes
        return search(model.make_step("xla" if fixed_shapes else "graph"), state, *arguments)

    expected = tf.function(decode)(False)
    found = tf.function(decode, jit_compile=True)(True)
    assert found[0].shape[-1] == MAX_LENGTH >= expected[0].shape[-1]
    for i, (one, other) in enumerate(zip(hypotheses(*found), hypotheses(*expected), strict=True)):
        if CONFIGS[name].sample:  # XLA draws other numbers
            other = [(score(model, sources[i], tokens), tokens) for _, tokens in one]
        assert [tokens for _, tokens in one] == [tokens for _, tokens in other]
        assert [h[0] for h in one] == pytest.approx([h[0] for h in other], abs=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_greedy_search_ranks_no_sentence_higher_than_a_beam(length_penalty, model):
    """With all that is alive given up once two have ended, it ranks 8 and 9 in a hundred higher."""
    texts = [text for text, _ in toy_pairs(200, seed=3)]
    source, _ = trained_translator().read_source(tf.constant(texts))
    configs = GREEDY, SearchConfig(beam_size=2, length_penalty=length_penalty)

    @tf.function
    def decode(config):
        state = model.initial_state(source)
        return search(model.make_step(), state, len(texts), MAX_LENGTH, config)

    greedy, beam = (
        log_prob[:, 0] / ((5 + lengths[:, 0]) / 6) ** length_penalty
        for _, lengths, log_prob in (map(np.array, decode(config)) for config in configs)
    )
    assert np.mean(greedy > beam + 1e-4) == 0 and np.mean(beam > greedy + 1e-4) > 0.05


# Configurations.


def test_one_set_of_defaults():
    config = SearchConfig()
    assert (config.length_penalty, config.beam_patience) == (1.0, 1.0)
    for function in (beam_search, sample):
        for parameter in inspect.signature(function).parameters.values():
            if hasattr(config, parameter.name) and parameter.name != "beam_size":
                assert parameter.default == getattr(config, parameter.name)
    assert ExportConfig().search == dataclasses.replace(config, beam_size=5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"beam_size": 0}, "beam_size must be at least 1, received 0"),
        ({"length_penalty": -1.0}, "length_penalty must be a number of at least 0, received -1.0"),
        ({"beam_patience": 0.9}, "beam_patience must be at least 1; inf for an exact search"),
        ({"beam_patience": math.nan}, "beam_patience must be at least 1"),
        ({"length_norm": "words"}, "length_norm must be one of gnmt, length, received 'words'"),
        ({"temperature": -1.0}, "temperature must be a number above 0"),
        ({"temperature": float("inf")}, "temperature must be a number above 0, received inf"),
        ({"temperature": 2.0}, "temperature needs sample, received temperature=2.0"),
        ({"top_k": 5, "beam_size": 2}, "top_k needs sample"),
        ({"top_p": 0.9}, "top_p needs sample"),
        ({"top_k": -2}, "top_k must be at least 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**31}, "seed must be at least 0 and less than"),
        ({"max_output_length": 0}, "max_output_length must be at least 1, received 0"),
        ({"beam_size": 4, "sample": True}, "beam_size must be 1 with sample, received 4"),
    ],
)
def test_configurations_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        SearchConfig(**options)
