"""Pairs of texts as ids: all of them, in their order, from any iterable, in one array or many."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.pairs import CHUNK, EncodedPairs, Sentences, encode_pairs
from tests.support.numbered_pairs import numbers


def test_any_iterable_is_read_once():
    """More than are tokenized at once; empty and long sides are kept, also of several corpora."""
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
    nothing, more = (encode_pairs(x, numbers, numbers) for x in ([], [("8", "9 " * 70_000)]))
    joined = EncodedPairs.concatenate([encoded, nothing, more])
    found = [side.gather(np.array([count, 3]))[0] for side in (joined.source, joined.target)]
    assert [ids.tolist() for ids in found] == [[8, 3, 70000], [9] * 70_000 + [5, 6]]


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
