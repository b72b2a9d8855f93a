"""Batches of few shapes, which XLA compiles: the same pairs, and padding."""

import numpy as np
import pytest

from keras_transformer.data.dataset import make_dataset
from keras_transformer.special_ids import PAD
from tests.support.toy_translator import toy_tokenizer

BUDGET = 96


def make_pairs(count=200):
    lengths = np.random.default_rng(0).integers(1, 30, (count, 2))
    return [("a" * source, "b" * target) for source, target in lengths]


def read(**options):
    tokenizer = toy_tokenizer()
    arguments = make_pairs(), tokenizer, tokenizer, BUDGET, 32
    return list(make_dataset(*arguments, seed=3, **options).as_numpy_iterator())


def rows_of(batches):
    """The ids of each pair, without padding."""
    rows = []
    for (source, start), target in batches:
        for ids in zip(source, start, target, strict=True):
            row = tuple(tuple(x[x != PAD].tolist()) for x in ids)
            rows += [row] if any(row) else []
    return sorted(rows)


def test_one_shape_for_each_boundary():
    batches = read(fixed_shapes=True)
    assert {source.shape for (source, _), _ in batches} == {(6, 16), (4, 24), (3, 32)}
    assert all(x.shape == y.shape == z.shape for (x, y), z in batches)
    assert rows_of(batches) == rows_of(read()) and len(rows_of(batches)) == len(make_pairs())


@pytest.mark.parametrize("count", [2, 5])
def test_shards_are_filled_too(count):
    shards = [read(fixed_shapes=True, shard=(i, count)) for i in range(count)]
    whole = read(fixed_shapes=True)
    assert {len(shard) for shard in shards} == {len(whole)}
    assert sorted(sum(map(rows_of, shards), [])) == rows_of(whole)
    counts = {16: -(-6 // count), 24: -(-4 // count), 32: -(-3 // count)}
    for (source, _), _ in sum(shards, []):
        assert source.shape[0] == counts[source.shape[1]]
