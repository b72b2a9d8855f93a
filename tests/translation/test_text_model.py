"""Scores of given pairs: how probable they are, what a token attends to, and other tokens."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.presets import SearchConfig
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.translation.text_model import MIN_SLICE_ROWS, SLICES, search_in_slices
from tests.support.toy_steps import log_softmax
from tests.support.toy_translator import SOURCES, random_translator, trained_translator

TARGETS = ["ABC", "HGFA", "", "x", "BBBB", "東", "H", "HB", "GFEDCBA", ""]


@pytest.fixture(scope="module")
def deep():
    """Three layers with weights at random."""
    return random_translator(num_layers=3, seed=5)


def ids(tokenizer, text):
    return [*tokenizer(text).numpy().tolist(), END]


@functools.cache
def compiled(model):
    ids = tf.TensorSpec([None, None], tf.int32)
    return tf.function(
        lambda source, target: model((source, target), return_attention_scores=True),
        input_signature=[ids, ids],
    )


def run(translator, source, target):
    """Logits and attention scores, as NumPy arrays, of one pair without padding."""
    source = np.array([ids(translator.source_tokenizer, source)])
    target = np.array([[START, *ids(translator.target_tokenizer, target)[:-1]]])
    logits, scores = compiled(translator.model)(source, target)
    return logits.numpy()[0], np.stack([layer.numpy()[0] for layer in scores["cross"]])


def test_score_is_the_sum_of_log_softmax():
    translator = trained_translator()
    for batch_size in (64, 3):
        found = translator.score(SOURCES, TARGETS, batch_size)
        for source, target, (log_prob, tokens) in zip(SOURCES, TARGETS, found, strict=True):
            expected = ids(translator.target_tokenizer, target)
            rows = zip(run(translator, source, target)[0], expected, strict=True)
            assert tokens == len(expected)
            assert log_prob == pytest.approx(sum(log_softmax(r)[t] for r, t in rows), abs=1e-4)


def test_score_is_what_the_search_says():
    """A translation that is forced and then ends has the score of that pair."""
    translator, beam = trained_translator(), SearchConfig(beam_size=5, length_penalty=0.0)
    scores = translator.score(SOURCES, TARGETS)
    found = translator.translate_n_best(SOURCES, search=beam, prefixes=TARGETS)
    equal = 0
    for source, target, (score, _), n_best in zip(SOURCES, TARGETS, scores, found, strict=True):
        # An empty target forces nothing, and a lone word mark makes an empty text too.
        forced = source and target
        log_probs = [log_prob for text, log_prob, _ in n_best if text == target and forced]
        equal += bool(log_probs)
        assert not log_probs or score in [pytest.approx(value, abs=1e-4) for value in log_probs]
    assert equal > 3


def test_empty_to_empty():
    translator = trained_translator()
    assert translator.score(["", " ", "ab"], ["", "", ""])[:2] == [(0.0, 0), (0.0, 0)]
    assert translator.score([], []) == [] == translator.align([], [])


def test_align_is_where_attention_is_greatest(deep):
    sources, targets = ["abc", "", "bbbbbbb", "hb"], ["ABCD", "AB", "", "東"]
    pairs = list(zip(sources, targets, strict=True))
    crosses = [run(deep, *pair)[1] for pair in pairs]  # (N, H, T, S) each
    on_end = 0
    for layers, heads in [
        (None, None),
        ([1], [2]),
        ([3, 1], None),
        ((1, 2, 3), [1]),
        ([2], [1, 2]),
    ]:
        found = deep.align(sources, targets, layers, heads, batch_size=3)
        for pair, cross, (pieces, target_pieces, positions) in zip(
            pairs, crosses, found, strict=True
        ):
            assert "".join(pieces) == (f"▁{pair[0]}" if pair[0] else "")
            assert len(target_pieces) == len(ids(deep.target_tokenizer, pair[1])) - 1
            chosen = cross[[layer - 1 for layer in layers or [2]]]
            mean = chosen[:, [head - 1 for head in heads or [1, 2]]].mean(axis=(0, 1))
            # Without END on either side, even where it is what is attended to most.
            assert positions == (mean[:-1, :-1].argmax(axis=-1).tolist() if pair[0] else [])
            on_end += np.sum(mean.argmax(axis=-1) == len(pieces)) if pair[0] else 0
    assert on_end > 0


def test_align_of_one_layer():
    translator = random_translator()
    assert translator.align(["ab"], ["AB"]) == translator.align(["ab"], ["AB"], layers=[1])


def test_sources_are_cut_as_in_translation():
    translator = trained_translator()
    long, cut = "abcdefgabc" + "h" * 50, "abcdefgabc"  # ▁, ten characters and END
    (a, _), (b, _) = translator.score([long, cut], ["AB", "AB"])
    assert a == pytest.approx(b, abs=1e-4)
    first, second = translator.align([long, cut], ["AB", "AB"])
    assert first == second


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t: t.score("ab", ["AB"]), "a list of sentences, received one string"),
        (lambda t: t.score(["ab"], "AB"), "a list of sentences, received one string"),
        (lambda t: t.score(["ab", "c"], ["AB"]), "a target for each source, received 1 for 2"),
        (lambda t: t.align(["ab"], []), "a target for each source, received 0 for 1"),
        # ▁, twelve letters, END
        (lambda t: t.score(["a", "b"], ["A", "A" * 12]), "Target 2 has 14 tokens, .*length is 12"),
        (lambda t: t.align(["a"], ["A" * 11]), "Target 1 has 13 tokens"),
        (lambda t: t.align(["a"], ["A"], layers=[2]), "Unknown layer 2: choose from 1 to 1"),
        (lambda t: t.align(["a"], ["A"], layers=[0]), "Unknown layer 0"),
        (lambda t: t.align(["a"], ["A"], heads=[1, 3]), "Unknown head 3"),
        (lambda t: t.align(["a"], ["A"], heads=[]), "at least one head"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call(trained_translator())


# Attention maps and token probabilities.

LAYERS = dict(num_layers=2, num_heads=4)


def test_attention_maps():
    translator = random_translator(deviation=0.3, **LAYERS)
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
    mean = maps.scores["cross"][1].mean(axis=0)[:-1, :-1]
    assert np.argmax(mean, axis=1).tolist() == aligned


def test_probabilities_are_those_of_the_score():
    translator = trained_translator()
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
    padded = [*tokens[0].numpy().tolist(), PAD, PAD]
    steps = kt.token_probabilities(translator, "abcd", padded, number=2)
    assert all(step.token == step.best[0][0] for step in steps)
    assert sum(step.log_prob for step in steps) == pytest.approx(float(log_prob[0]), abs=1e-4)
    assert len(steps) == padded.index(END) + 1


def test_ids_without_an_end_stay_open():
    ids = trained_translator().target_tokenizer("AB").numpy()
    steps = kt.token_probabilities(trained_translator(), "ab", ids)
    assert [step.token for step in steps] == ["▁", "A", "B"]


@pytest.mark.parametrize(
    "target, number, message",
    [
        ("A", 0, "number must be from 1 to 277, the vocabulary, received 0"),
        ("A", 278, "received 278"),
        ("A" * 20, 5, "max_length is 12."),
        ([5] * 13, 5, "Expected 1 to 12 ids of a vocabulary of 277"),
        ([277], 5, r"received \[277\]"),
        ([], 5, "a text or the ids of one|1 to 12 ids"),
        ([[5]], 5, "a text or the ids of one"),
        ([0.5], 5, "a text or the ids of one"),
    ],
)
def test_what_does_not_fit(target, number, message):
    with pytest.raises(ValueError, match=message):
        kt.token_probabilities(trained_translator(), "a", target, number)


# Batches are searched in parts.


@pytest.mark.parametrize(
    "rows", [0, 1, MIN_SLICE_ROWS - 1, 2 * MIN_SLICE_ROWS, 4 * MIN_SLICE_ROWS + 3]
)
def test_parts_have_lengths_of_their_own(rows):
    """Row i has i tokens, all i + 1; each part is as wide as its longest row."""
    sizes = []

    def find(numbers):
        widest = tf.reduce_max(tf.concat([numbers, [0]], 0))
        sizes.append(len(sizes))
        used = tf.range(widest) < numbers[:, tf.newaxis]
        tokens = tf.where(used, numbers[:, tf.newaxis] + 1, PAD)
        return tokens, numbers, tf.cast(numbers, tf.float32)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int32)])
    def search(numbers):
        return search_in_slices(find, {"numbers": numbers})

    numbers = np.arange(rows)
    tokens, lengths, log_probs = search(numbers)
    assert len(sizes) == 1  # one function, however many parts
    assert tokens.shape == (rows, max(0, rows - 1))
    np.testing.assert_array_equal(np.count_nonzero(tokens, axis=1), numbers)
    np.testing.assert_array_equal(lengths, numbers)
    np.testing.assert_array_equal(log_probs, numbers)


def test_parts_are_calls_of_one_function():
    """As many as it says, of which none waits for another."""

    def calls(graph):
        names = [f"{op.get_attr('f').name}" for op in graph.get_operations() if "Call" in op.type]
        return names

    function = tf.function(
        lambda x: search_in_slices(lambda x: (x[:, tf.newaxis], x, x), {"x": x}),
        input_signature=[tf.TensorSpec([None], tf.int32)],
    )
    graph = function.get_concrete_function().graph
    (choice,) = (op for op in graph.get_operations() if op.type in ("Case", "StatelessCase"))
    branches = [graph._get_function(f.name).graph for f in choice.get_attr("branches")]
    found = [calls(branch) for branch in branches]
    assert [len(names) for names in found] == list(SLICES)
    assert len({name for names in found for name in names}) == 1
