"""Which pairs make up a batch: as a loop over all pairs, one after the other, would decide."""

import itertools

import numpy as np
import pytest

from keras_transformer.data.pairs import EncodedPairs, Sentences
from keras_transformer.data.planning import (
    BatchPlanner,
    bucket_boundaries,
    divide_by_weights,
    sorting_keys,
    split_by_budget,
)


def test_boundaries_by_default():
    assert bucket_boundaries(1) == [1]
    assert bucket_boundaries(16) == list(range(1, 17))
    assert bucket_boundaries(17) == [*range(1, 17), 17]
    assert bucket_boundaries(40) == [*range(1, 17), *range(18, 33, 2), 36, 40]
    assert bucket_boundaries(33) == [*range(1, 17), *range(18, 33, 2), 33]
    assert bucket_boundaries(256)[-9:] == [128, 144, 160, 176, 192, 208, 224, 240, 256]
    for max_length in (5, 64, 100, 512, 1000):
        lengths = bucket_boundaries(max_length)
        assert lengths[-1] == max_length
        # Rounding up adds at most an eighth, and only lengths above 16 are rounded at all.
        assert all(8 * (b - a - 1) <= a for a, b in itertools.pairwise(lengths))


def loop(source, target, boundaries, budget):
    """The batches by the definition: sorted, then one pair after the other while the budget holds.

    Takes the numbers of the sides' buckets.
    """
    longer, difference = np.maximum(source, target), source - target
    order = np.lexsort((np.where(longer % 2, -difference, difference), longer))
    batches, start, longest = [], 0, 0
    for end, row in enumerate(order):
        longest = max(longest, boundaries[longer[row]])
        if (end + 1 - start) * longest > budget:
            batches.append(order[start:end])
            start, longest = end, boundaries[longer[row]]
    return [*batches, order[start:]]


def sentences_of_lengths(lengths):
    """Sentences of so many ids; all of them are 7."""
    return Sentences([(np.full(np.sum(lengths), 7, np.uint8), np.cumsum([0, *lengths]))])


def planner_of(source, target, budget, boundaries, seed=None):
    pairs = EncodedPairs(sentences_of_lengths(source), sentences_of_lengths(target))
    rows = np.arange(len(pairs))
    return BatchPlanner(pairs, rows, [len(rows)], [1], budget, np.array(boundaries), seed)


def batches_of(plan):
    return [plan.batch(turn).tolist() for turn in range(len(plan.order))]


@pytest.mark.parametrize("budget", [31, 97, 400, 10**7])
@pytest.mark.parametrize("boundaries", [[31], [7, 8, 31], list(range(1, 32)), [2, 29, 31]])
@pytest.mark.parametrize("count", [1, 2, 333])
def test_plan_is_that_of_the_loop(budget, boundaries, count):
    source, target = np.random.default_rng(count).integers(1, 31, (2, count))
    plan = planner_of(source, target, budget, boundaries).plan(0)
    buckets = (np.searchsorted(boundaries, side + 1) for side in (source, target))
    expected = loop(*buckets, boundaries, budget)
    assert batches_of(plan) == [rows.tolist() for rows in expected]


def test_more_buckets_than_small_keys_can_hold():
    """Every length from 1 to 400 has its own: keys up to 400² do not fit into 16 bits."""
    boundaries = list(range(1, 401))
    source, target = np.random.default_rng(5).integers(1, 400, (2, 700))
    plan = planner_of(source, target, 999, boundaries).plan(0)
    assert batches_of(plan) == [rows.tolist() for rows in loop(source, target, boundaries, 999)]


def test_keys_of_a_bucket_are_its_own():
    numbers = np.array(list(itertools.product(range(23), repeat=2)))
    keys = sorting_keys(*numbers.T)
    assert sorted(keys) == list(range(23**2))
    assert np.floor(np.sqrt(keys)).tolist() == numbers.max(axis=1).tolist()


def test_cut_by_hand():
    # Three of length 4, none of 5, two of 10; 20 cells hold five of 4, but two of 10.
    splits = split_by_budget(np.array([3, 3, 5]), np.array([4, 5, 10]), 20)
    assert splits.tolist() == [0, 3, 5]
    splits = split_by_budget(np.array([1, 1, 4]), np.array([4, 5, 10]), 20)
    assert splits.tolist() == [0, 2, 4]


def test_shares_sum_up():
    assert divide_by_weights(10, [3, 1]) == [8, 2]
    assert divide_by_weights(7, [1, 1, 1]) == [3, 2, 2]
    assert divide_by_weights(3, [1e-9, 1]) == [0, 3]
    for total in (1, 17, 1000):
        assert sum(divide_by_weights(total, [0.3, 2.7, 1.1])) == total
