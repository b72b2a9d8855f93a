"""Pairs of texts as ids: all of them, in their order, from anything that can be gone through."""

import numpy as np
import pytest

from keras_transformer.data.encoded_pairs import CHUNK, EncodedPairs, Sentences, encode_pairs
from tests.support.numbered_pairs import numbers


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


def test_what_is_kept_and_why_not():
    """Lengths count END: of at most 5, four ids are left."""
    pairs = EncodedPairs(
        Sentences.of([[4] * n for n in (4, 5, 4, 9, 0, 0, 1, 66_000)]),
        Sentences.of([[4] * n for n in (4, 4, 5, 9, 1, 0, 0, 1)]),
    )
    kept, dropped = pairs.kept(5)
    assert kept.tolist() == [0] and kept.dtype == np.int32
    assert dropped == {
        "with an empty source": 2,
        "with an empty target": 1,
        "with a source of more than 5 tokens": 3,
        "with a target of more than 5 tokens": 1,
    }
    assert pairs.summary(dropped).startswith("kept 1 of 8 pairs; dropped 2 with an empty source, 1")
    kept, dropped = pairs.kept(70_000)
    assert kept.tolist() == [0, 1, 2, 3, 7] and sum(dropped.values()) == 3


def test_joined():
    first = EncodedPairs(Sentences.of([[4], [5, 5]]), Sentences.of([[6], [7]]))
    second = EncodedPairs(Sentences.of([[8]]), Sentences.of([[9, 9, 9]]))
    joined = EncodedPairs.joined([first, second])
    assert joined.source.gather(np.array([2, 0]))[0].tolist() == [8, 4]
    assert joined.target.gather(np.array([1, 2]))[0].tolist() == [7, 9, 9, 9]
    assert EncodedPairs.joined([first]) is first


def test_a_target_for_each_source():
    with pytest.raises(ValueError, match="a target for each source, received 2 sources and 1 targ"):
        EncodedPairs(Sentences.of([[4], [5]]), Sentences.of([[6]]))
