"""Which pairs make up a batch: as a loop over all pairs, one after the other, would decide."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data import planning
from keras_transformer.data.pairs import EncodedPairs, Sentences
from keras_transformer.data.planning import BatchPlanner, bucket_boundaries, divide_by_weights


def test_boundaries_by_default():
    assert bucket_boundaries(1) == [1]
    assert bucket_boundaries(17) == [*range(1, 17), 17]
    assert bucket_boundaries(40) == [*range(1, 17), *range(18, 33, 2), 36, 40]
    assert bucket_boundaries(256)[-9:] == [128, 144, 160, 176, 192, 208, 224, 240, 256]
    for max_length in (5, 33, 100, 1000):
        lengths = bucket_boundaries(max_length)
        assert lengths[-1] == max_length
        # Rounding up adds at most an eighth, and only lengths above 16 are rounded at all.
        assert all(8 * (b - a - 1) <= a for a, b in itertools.pairwise(lengths))


def loop(source, target, boundaries, budget):
    """The batches by the definition, of the numbers of buckets: pair by pair, within the budget."""
    longer, difference = np.maximum(source, target), source - target
    order = np.lexsort((np.where(longer % 2, -difference, difference), longer))
    batches, start, longest = [], 0, 0
    for end, row in enumerate(order):
        longest = max(longest, boundaries[longer[row]])
        if (end + 1 - start) * longest > budget:
            batches.append(order[start:end].tolist())
            start, longest = end, boundaries[longer[row]]
    return [*batches, order[start:].tolist()]


def sentences_in_shards(lengths, shards):
    parts = np.array_split(lengths, shards)
    return Sentences([(np.full(sum(x), 7, np.uint8), np.cumsum([0, *x])) for x in parts])


def batches_of(source, target, boundaries, budget, seed=None, number=0, shards=1):
    pairs = EncodedPairs(*(sentences_in_shards(side, shards) for side in (source, target)))
    rows = np.arange(len(pairs))
    planner = BatchPlanner(pairs, rows, [len(rows)], [1], budget, np.array(boundaries), seed)
    plan = planner.plan(number)
    return [plan.batch(turn).tolist() for turn in range(len(plan.order))]


@st.composite
def corpora(draw):
    """Lengths of both sides without END, boundaries and a budget."""
    longest = draw(st.integers(1, 40))
    length = st.integers(1, longest)
    source, target = np.array(draw(st.lists(st.tuples(length, length), min_size=1))).T
    boundaries = sorted(draw(st.sets(st.integers(1, longest))) | {longest + 1})
    return source, target, boundaries, draw(st.integers(longest + 1, 9 * longest + 1))


@given(corpora(), st.integers(0, 9), st.integers(0, 9), st.integers(1, 4))
def test_each_pair_once_within_the_budget(corpus, seed, number, shards):
    """Whatever the order; without a seed, as the loop has it. Shards do not count."""
    source, target, boundaries, budget = corpus
    sides = source, target
    expected = loop(*(np.searchsorted(boundaries, x + 1) for x in sides), boundaries, budget)
    assert batches_of(*corpus, shards=shards) == expected
    found = batches_of(*corpus, seed, number, shards)
    assert found == batches_of(*corpus, seed, number)
    assert sorted(sum(found, [])) == list(range(len(source)))
    assert sorted(map(len, found)) == sorted(map(len, expected))
    for rows in found:
        longest = max(side[rows].max() for side in sides) + 1
        assert len(rows) * next(x for x in boundaries if x >= longest) <= budget


def test_more_buckets_than_small_keys_can_hold(monkeypatch):
    """Every length from 1 to 400 has its own: keys up to 400² do not fit into 16 bits."""
    monkeypatch.setattr(planning, "CHUNK", 64)  # keys are computed in many parts
    boundaries = list(range(1, 401))
    source, target = np.random.default_rng(5).integers(1, 400, (2, 700))
    assert batches_of(source, target, boundaries, 999) == loop(source, target, boundaries, 999)


def test_cut_by_hand():
    # Three of length 4, none of 5, two of 10; 20 cells hold five of 4, but two of 10.
    splits = planning.split_by_budget(np.array([3, 3, 5]), np.array([4, 5, 10]), 20)
    assert splits.tolist() == [0, 3, 5]
    splits = planning.split_by_budget(np.array([1, 1, 4]), np.array([4, 5, 10]), 20)
    assert splits.tolist() == [0, 2, 4]


def test_a_corpus_that_would_never_be_used_is_refused():
    pairs = EncodedPairs(*2 * [sentences_in_shards(np.array([3, 3, 3]), 1)])
    with pytest.raises(ValueError, match="Corpus 2 would never be used, its weight is so small"):
        BatchPlanner(pairs, np.arange(3), [2, 1], [1, 1e-3], 9, np.array([9]), seed=1)


def test_shares_sum_up():
    assert divide_by_weights(10, [3, 1]) == [8, 2]
    assert divide_by_weights(7, [1, 1, 1]) == [3, 2, 2]
    assert divide_by_weights(3, [1e-9, 1]) == [0, 3]
    assert sum(divide_by_weights(1000, [0.3, 2.7, 1.1])) == 1000
