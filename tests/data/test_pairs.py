"""Pairs of texts as ids: all of them, in their order, from any iterable, in one array or many."""

import re

import numpy as np
import pytest

from keras_transformer.data.pairs import CHUNK, EncodedPairs, Sentences, encode_pairs, read_sides
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


ROWS = [[5, 6, 7], [], [4], [9, 9], [], [8, 5, 5, 5]]


def shards(sizes, dtype):
    """`ROWS` cut into shards of so many sentences."""
    start = 0
    for size in sizes:
        rows = ROWS[start : start + size]
        start += size
        yield np.array(sum(rows, []), dtype), np.cumsum([0, *map(len, rows)])


@pytest.mark.parametrize("sizes", [[6], [2, 4], [1, 0, 2, 3], [3, 2, 1]])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_gathers_rows_in_any_order(sizes, dtype):
    sentences = Sentences(list(shards(sizes, dtype)))
    assert sentences.lengths.tolist() == [3, 0, 1, 2, 0, 4]
    for rows in ([5, 0, 1, 3, 0], [4], [], list(range(6))):
        ids, lengths = sentences.gather(np.array(rows, np.int64))
        assert ids.dtype == np.int32 and lengths.tolist() == [len(ROWS[row]) for row in rows]
        assert ids.tolist() == [id for row in rows for id in ROWS[row]]


def test_of_lists_and_of_nothing():
    ids, lengths = sentences_of(ROWS).gather(np.array([3, 2]))
    assert ids.tolist() == [9, 9, 4] and lengths.tolist() == [2, 1]
    assert len(Sentences([]).lengths) == len(sentences_of([]).lengths) == 0


def test_memory_mapped_files(tmp_path):
    paths = []
    for number, (ids, offsets) in enumerate(shards([2, 4], np.uint16)):
        paths.append([tmp_path / f"{number}.{name}.npy" for name in ("ids", "offsets")])
        np.save(paths[-1][0], ids)
        np.save(paths[-1][1], offsets)
    sentences = Sentences([tuple(np.load(p, mmap_mode="r") for p in pair) for pair in paths])
    assert sentences.gather(np.array([5, 3]))[0].tolist() == [8, 5, 5, 5, 9, 9]


def test_long_sentences():
    assert sentences_of([[4] * 70_000, [5]]).lengths.tolist() == [70_000, 1]


@pytest.mark.parametrize(
    "pairs, received",
    [
        (["hello world"], "'hello world'"),
        ({"source": ["a"], "target": ["b"]}, "'source'"),
        ("train.tsv", "'t'"),
        ([("a",)], "('a',)"),
        ([("a", "b"), ("a", None)], "('a', None)"),
    ],
)
def test_what_is_no_pair(pairs, received):
    message = f"must be pairs .source, target. of texts, received element .: {re.escape(received)}"
    with pytest.raises(ValueError, match=message):
        read_sides(pairs)
