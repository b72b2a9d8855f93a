"""One translation: what its tokens attend to, and how probable each was."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.support.toy_translator import random_translator, trained_translator, without_graphs


def test_attention_maps():
    translator = without_graphs(random_translator(deviation=0.3, num_layers=2, num_heads=4))
    maps = kt.attention_maps(translator, "abc", "ABCD")
    assert maps.source_tokens[-3:] == ["b", "c", "</s>"]
    assert maps.target_tokens[-3:] == ["C", "D", "</s>"]
    sizes = len(maps.source_tokens), len(maps.target_tokens)
    shapes = {"encoder": sizes[:1] * 2, "decoder": sizes[1:] * 2, "cross": sizes[::-1]}
    for kind, shape in shapes.items():
        assert maps.scores[kind].shape == (2, 4, *shape)
        np.testing.assert_allclose(maps.scores[kind].sum(axis=-1), 1, atol=1e-5)
        assert tuple(map(len, maps.labels(kind))) == shape[::-1], "keys, then queries"
    assert np.triu(maps.scores["decoder"][0, 0], 1).max() == 0, "nothing of what is to come"
    keys, queries = maps.labels("decoder")
    assert keys == queries == ["<s>", *maps.target_tokens[:-1]]
    aligned = translator.align(["abc"], ["ABCD"], layers=[2])[0][2]
    assert np.argmax(maps.scores["cross"][1].mean(axis=0)[:-1, :-1], axis=1).tolist() == aligned


def test_probabilities_are_those_of_the_score():
    translator = without_graphs(trained_translator())
    ((log_prob, tokens),) = translator.score(["cafe"], ["CAGE"])
    steps = kt.token_probabilities(translator, "cafe", "CAGE", number=7)
    assert len(steps) == tokens and steps[-1].token == "</s>"
    assert sum(step.log_prob for step in steps) == pytest.approx(log_prob, abs=1e-4)
    for step in steps:
        log_probs = [value for _, value in step.best]
        assert len(log_probs) == 7 and log_probs == sorted(log_probs, reverse=True)
        assert step.log_prob <= log_probs[0] and np.exp(log_probs).sum() <= 1 + 1e-5
        for piece, value in step.best:
            assert piece != step.token or value == pytest.approx(step.log_prob)


def test_greedy_search_takes_the_first_of_each():
    translator = trained_translator()
    source = translator.source_tokenizer(["abcd"], end=True).to_tensor()
    model = translator.model
    tokens, _, log_prob = kt.greedy_search(model.make_step(), model.initial_state(source), 1, 12)
    padded = [*tokens[0].numpy().tolist(), kt.PAD, kt.PAD]
    for target in (padded, None):
        steps = kt.token_probabilities(translator, "abcd", target, number=2)
        assert all(step.token == step.best[0][0] for step in steps)
        assert sum(step.log_prob for step in steps) == pytest.approx(float(log_prob[0]), abs=1e-4)
        assert len(steps) == padded.index(kt.END) + 1
    steps = kt.token_probabilities(translator, "ab", translator.target_tokenizer("AB").numpy())
    assert [step.token for step in steps] == ["▁", "A", "B"], "no END of its own"
