"""Pairs of texts as ids: all of them, in their order, from any iterable, in one array or many."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.pairs import CHUNK, EncodedPairs, Sentences, encode_pairs
from tests.support.numbered_pairs import numbers, sentences_of


def test_any_iterable_is_read_once():
    """More than are tokenized at once; empty sides are kept."""
    count = CHUNK + 3
    asked = []

    def pairs():
        for number in range(count):
            asked.append(number)
            yield f"{number} 70000", "5 6" * (number % 2), "a group"

    encoded = encode_pairs(pairs(), numbers, numbers)
    assert asked == list(range(count)) and len(encoded) == count
    ids, lengths = encoded.source.gather(np.array([CHUNK + 1, 7]))
    assert ids.tolist() == [CHUNK + 1, 70000, 7, 70000] and lengths.tolist() == [2, 2]
    ids, lengths = encoded.target.gather(np.array([CHUNK, CHUNK + 1]))
    assert lengths.tolist() == [0, 2] and ids.tolist() == [5, 6]
    assert len(encode_pairs([], numbers, numbers)) == 0


def test_joined():
    first = EncodedPairs(sentences_of([[4], [5, 5]]), sentences_of([[6], [7]]))
    second = EncodedPairs(sentences_of([[8]]), sentences_of([[9, 9, 9]]))
    joined = EncodedPairs.concatenate([first, second])
    assert joined.source.gather(np.array([2, 0]))[0].tolist() == [8, 4]
    assert joined.target.gather(np.array([1, 2]))[0].tolist() == [7, 9, 9, 9]
    assert EncodedPairs.concatenate([first]) is first
    assert sentences_of([[4] * 70_000, [5]]).lengths.tolist() == [70_000, 1]


sentences = st.lists(st.integers(4, 255), max_size=5)


@given(st.lists(st.lists(sentences, max_size=4), max_size=4), st.data())
def test_gathers_any_rows_of_any_shards(shards, data):
    dtype = data.draw(st.sampled_from([np.uint8, np.uint16, np.int32]))
    rows = [row for shard in shards for row in shard]
    parts = [(np.array(sum(x, []), dtype), np.cumsum([0, *map(len, x)])) for x in shards]
    stored = Sentences(parts)
    assert stored.lengths.tolist() == list(map(len, rows))
    wanted = data.draw(st.lists(st.sampled_from(range(len(rows))))) if rows else []
    ids, lengths = stored.gather(np.array(wanted, np.int64))
    assert ids.dtype == np.int32 and lengths.tolist() == [len(rows[row]) for row in wanted]
    assert ids.tolist() == [id for row in wanted for id in rows[row]]
