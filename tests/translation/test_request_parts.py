"""Many rows are searched for in parts, and nobody sees it."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.special_ids import PAD
from keras_transformer.translation.request_parts import FEWEST_ROWS, PARTS, in_parts
from tests.support.toy_translator import SOURCES, trained_translator


@pytest.mark.parametrize("rows", [0, 1, FEWEST_ROWS - 1, 2 * FEWEST_ROWS, 4 * FEWEST_ROWS + 3])
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
        return in_parts(find, {"numbers": numbers})

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
        lambda x: in_parts(lambda x: (x[:, tf.newaxis], x, x), {"x": x}),
        input_signature=[tf.TensorSpec([None], tf.int32)],
    )
    graph = function.get_concrete_function().graph
    (choice,) = (op for op in graph.get_operations() if op.type in ("Case", "StatelessCase"))
    branches = [graph._get_function(f.name).graph for f in choice.get_attr("branches")]
    found = [calls(branch) for branch in branches]
    assert [len(names) for names in found] == list(PARTS)
    assert len({name for names in found for name in names}) == 1


@pytest.mark.parametrize("rows", [1, 2 * FEWEST_ROWS, 4 * FEWEST_ROWS + 1])
def test_translations_are_those_of_single_rows(rows):
    translator = trained_translator()
    texts = (SOURCES * 6)[:rows]
    alone = [translator.translate([text])[0] for text in dict.fromkeys(texts)]
    expected = dict(zip(dict.fromkeys(texts), alone, strict=True))
    outputs = translator.serve(tf.constant(texts))
    assert [text.decode() for text in outputs["text"].numpy()] == [expected[t] for t in texts]


def test_a_few_sentences_are_translated_without_a_graph(monkeypatch):
    translator = trained_translator()
    expected = translator.translate_n_best(SOURCES[:2])
    monkeypatch.setattr(translator, "compiled", None)  # put back at the end
    translator.run_eagerly()
    monkeypatch.setattr(tf, "function", None)  # none is made
    assert translator.translate_n_best(SOURCES[:2]) == [
        [(text, *(pytest.approx(value, abs=1e-5) for value in numbers)) for text, *numbers in row]
        for row in expected
    ]
