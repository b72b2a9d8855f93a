"""What signatures compute: scores and alignments of given pairs, and batches in parts."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START
from keras_transformer.translation.text_model import MIN_SLICE_ROWS, SLICES, search_in_slices
from tests.support import toy_translator as toy
from tests.support.toy_steps import log_softmax

TARGETS = ["ABC", "HGFA", "", "x", "BBBB", "東", "H", "HB", "GFEDCBA", ""]


@pytest.fixture(scope="module")
def eager():
    return toy.without_graphs(toy.trained_translator())


@pytest.fixture(scope="module")
def deep():
    return toy.without_graphs(toy.random_translator(num_layers=3, seed=5))


def ids(tokenizer, text):
    return [*tokenizer(text).numpy().tolist(), END]


def run(translator, source, target):
    source = np.array([ids(translator.source_tokenizer, source)])
    target = np.array([[START, *ids(translator.target_tokenizer, target)[:-1]]])
    logits, scores = translator.model((source, target), return_attention_scores=True)
    return logits.numpy()[0], np.stack([layer.numpy()[0] for layer in scores["cross"]])


def test_score_is_the_sum_of_log_softmax(eager):
    in_graph = toy.trained_translator().score(toy.SOURCES, TARGETS, 3)
    found = eager.score(toy.SOURCES, TARGETS)
    for source, target, *both in zip(toy.SOURCES, TARGETS, found, in_graph, strict=True):
        expected = ids(eager.target_tokenizer, target)
        rows = zip(run(eager, source, target)[0], expected, strict=True)
        log_prob = pytest.approx(sum(log_softmax(r)[t] for r, t in rows), abs=1e-4)
        assert both == [(log_prob, len(expected))] * 2
    assert eager.score(["", " ", "ab"], ["", "", ""])[:2] == [(0.0, 0), (0.0, 0)]
    assert eager.score([], []) == [] == eager.align([], [])


def test_align_is_where_attention_is_greatest(deep, eager):
    sources, targets = ["abc", "", "bbbbbbb", "hb", "ab"], ["ABCD", "AB", "", "東", "HGFEDCBA"]
    pairs = list(zip(sources, targets, strict=True))
    crosses = [run(deep, *pair)[1] for pair in pairs]  # (N, H, T, S) each
    on_end = 0
    for layers, heads in [(None, None), ([1], [2]), ([3, 1], None), ((1, 2, 3), [1])]:
        found = deep.align(sources, targets, layers, heads, batch_size=3)
        for pair, cross, (pieces, others, positions) in zip(pairs, crosses, found, strict=True):
            assert "".join(pieces) == (f"▁{pair[0]}" if pair[0] else "")
            assert len(others) == len(ids(deep.target_tokenizer, pair[1])) - 1
            chosen = cross[[layer - 1 for layer in layers or [2]]]
            mean = chosen[:, [head - 1 for head in heads or [1, 2]]].mean(axis=(0, 1))
            # Without END on either side, even where it is what is attended to most.
            assert positions == (mean[:-1, :-1].argmax(axis=-1).tolist() if pair[0] else [])
            on_end += np.sum(mean[:-1].argmax(axis=-1) == len(pieces)) if pair[0] else 0
    assert on_end > 0
    # Of one layer, and in a graph.
    pair = ["ab"], ["AB"]
    in_graph = toy.trained_translator().align(*pair)
    assert in_graph == eager.align(*pair) == eager.align(*pair, layers=[1])


def test_parts_have_lengths_of_their_own():
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

    for rows in (0, 1, MIN_SLICE_ROWS - 1, 2 * MIN_SLICE_ROWS, 4 * MIN_SLICE_ROWS + 3):
        numbers = np.arange(rows, dtype=np.int32)
        tokens, lengths, log_probs = search(numbers)
        assert tokens.shape == (rows, max(0, rows - 1))
        np.testing.assert_array_equal(np.count_nonzero(tokens, axis=1), numbers)
        np.testing.assert_array_equal(lengths, numbers)
        np.testing.assert_array_equal(log_probs, numbers)
    assert len(sizes) == 1  # one function, however many parts, which are calls of it
    graph = search.get_concrete_function().graph
    (choice,) = (op for op in graph.get_operations() if op.type in ("Case", "StatelessCase"))
    branches = [graph._get_function(f.name).graph for f in choice.get_attr("branches")]
    calls = [[op for op in branch.get_operations() if "Call" in op.type] for branch in branches]
    assert [len(found) for found in calls] == list(SLICES)
