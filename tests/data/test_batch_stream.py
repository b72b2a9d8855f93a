"""In which order batches come, pass after pass, and from any position on."""

import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.special_ids import PAD
from tests.support.command_line import python
from tests.support.numbered_pairs import (
    batches_of,
    dataset_of,
    numbers_of,
    pairs_of_lengths,
    random_pairs,
)


def test_order_is_that_of_the_seed():
    pairs = random_pairs()
    passes = {seed: batches_of(dataset_of(pairs, seed=seed)) for seed in (1, 2)}
    assert batches_of(dataset_of(pairs, seed=1)) == passes[1]
    assert passes[1] != passes[2]
    # Not only the order of the batches: also which pairs of equal length come together.
    assert sorted(map(str, passes[1])) != sorted(map(str, passes[2]))
    # Nor are they in the order of their lengths.
    lengths = [len(source[0]) for source, _, _ in passes[1]]
    assert lengths != sorted(lengths) and len(set(lengths[:8])) > 3


def test_order_of_the_batches_is_that_of_the_seed():
    # Each length has a bucket of its own: what belongs together is the same for every seed.
    pairs = pairs_of_lengths([(length, length) for length in range(1, 15)])

    def run(seed):
        return batches_of(dataset_of(pairs, 15, 15, seed=seed))

    assert run(1) == run(1) != run(2)
    assert sorted(run(1)) == sorted(run(2))


def test_no_shuffling():
    pairs = random_pairs()
    dataset = dataset_of(pairs, shuffle=False, seed=1)
    first = batches_of(dataset)
    assert first == batches_of(dataset) == batches_of(dataset_of(pairs, shuffle=False, seed=2))
    lengths = [max(len(source[0]), len(target[0])) for source, _, target in first]
    assert lengths == sorted(lengths)


def test_passes_differ_and_hold_the_same_pairs():
    dataset = dataset_of(random_pairs())
    first, second, third = (batches_of(dataset) for _ in range(3))
    assert first != second and second != third and first != third
    # Other pairs of equal length come together.
    assert sorted(map(str, first)) != sorted(map(str, second))
    assert [sorted(numbers_of(batches)) for batches in (first, second, third)] == [
        list(range(500))
    ] * 3


def uninterrupted(count=3, **options):
    """All batches of some passes, and how many there are in one."""
    dataset = dataset_of(random_pairs(40), 100, seed=5, **options)
    batches = [batch for _ in range(count) for batch in batches_of(dataset)]
    return batches, len(dataset)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("repeat", [True, False])
def test_goes_on_at_any_position(shuffle, repeat):
    whole, steps = uninterrupted(shuffle=shuffle)
    assert len(whole) == 3 * steps > 30
    dataset = dataset_of(random_pairs(40), 100, seed=5, shuffle=shuffle, repeat=repeat)
    for step in (2 * steps - 1, 0, 1, steps // 2, steps - 1, steps, steps + 3):
        tf.random.set_seed(step)  # nobody else's seed has a say
        np.random.seed(step)
        dataset.stream.position = dataset.stream.after((0, 0), step)
        assert batches_of(dataset.take(steps)) == whole[step : step + steps]
    assert dataset.stream.batches_per_pass == steps
    # The position behind the last batch of a pass is the next one's begin.
    for position in ((1, 0), (0, steps)):
        dataset.stream.position = position
        assert batches_of(dataset.take(1)) == whole[steps : steps + 1]


@pytest.mark.parametrize("position", [(-1, 0), (0, -1), (0, 10**6), (3, 10**6)])
def test_no_such_position(position):
    dataset = dataset_of(random_pairs(40), 100)
    with pytest.raises(ValueError, match="position must be .pass, batch"):
        dataset.stream.position = position
    assert dataset.stream.position == (0, 0)


def test_is_the_same_in_another_process():
    code = """
from tests.support.numbered_pairs import batches_of, dataset_of, random_pairs
import json
dataset = dataset_of(random_pairs(40), 100, seed=5)
dataset.stream.position = (1, 4)
print(json.dumps(batches_of(dataset)))
"""
    whole, steps = uninterrupted()
    start = steps + 4
    assert json.loads(python("-c", code)) == [list(batch) for batch in whole[start : start + steps]]


# Where the next iterator begins.


def test_iterator_that_ends_moves_the_position():
    whole, steps = uninterrupted()
    dataset = dataset_of(random_pairs(40), 100, seed=5)
    iterator = iter(dataset)
    for _ in range(steps - 1):
        next(iterator)
    time.sleep(0.05)  # the last batch is prepared, but not handed out
    assert dataset.stream.position == (0, 0)
    next(iterator)  # there is no asking for one more: `fit` does not, it knows the length
    assert dataset.stream.position == (1, 0)
    dataset.stream.position = (1, 3)
    assert batches_of(dataset) == whole[steps + 3 : 2 * steps + 3]
    assert dataset.stream.position == (2, 3)


@pytest.mark.parametrize("count", [12, 40])
def test_discarded_iterator_moves_nothing(count):
    """Not even if all of its batches were prepared."""
    dataset = dataset_of(random_pairs(count), 100, seed=5)
    iter(dataset)
    looked_at = iter(dataset)
    first = batches_of([next(looked_at)])
    time.sleep(0.05)
    assert dataset.stream.position == (0, 0)
    another = iter(dataset)
    assert batches_of([next(another)]) == first
    for _ in another:
        pass
    assert dataset.stream.position == (1, 0)


def test_position_that_was_set_is_not_moved_by_an_older_iterator():
    dataset = dataset_of(random_pairs(40), 100, seed=5)
    iterator = iter(dataset)
    next(iterator)
    dataset.stream.position = (7, 2)
    for _ in iterator:
        pass
    assert dataset.stream.position == (7, 2)


# For `fit`.


class Seen(keras.callbacks.Callback):
    """Where the stream is at the begin and the end of each epoch."""

    def __init__(self, stream):
        super().__init__()
        self.stream, self.positions = stream, []

    def on_epoch_begin(self, epoch, logs=None):
        self.positions.append(self.stream.position)

    def on_train_end(self, logs=None):
        self.positions.append(self.stream.position)


@pytest.mark.parametrize("steps", [None, 5])
def test_fit_goes_from_pass_to_pass(steps):
    """One pass an epoch where it counts the steps itself, else as many steps as it is told."""
    pairs = [(text.replace("1", "8"), "9 9") for text, _ in random_pairs(40, longest=9)]
    dataset = dataset_of(pairs, 100, 30, repeat=steps is not None)
    sizes = dict(num_layers=1, d_model=16, num_heads=2, d_ff=16, dropout=0.0, max_length=30)
    model = kt.Transformer(1000, 1000, **sizes)
    model.compile("sgd", kt.SmoothedCrossEntropy(0.0))
    seen = Seen(dataset.stream)
    model.fit(dataset, epochs=3, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[seen])
    assert model.optimizer.iterations == 3 * (steps or len(dataset))
    expected = [(0, 0)] * 4 if steps else [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert seen.positions == expected


# Shares of a batch.


@pytest.mark.parametrize("count", [2, 3, 30])
def test_shards_are_the_batch_together(count):
    whole = batches_of(dataset_of(random_pairs(60), 120))
    shards = [batches_of(dataset_of(random_pairs(60), 120, shard=(i, count))) for i in range(count)]
    assert {len(shard) for shard in shards} == {len(whole)}
    for number, batch in enumerate(whole):
        rows = len(batch[0])
        for index in range(count):
            share = shards[index][number]
            if index >= rows:
                assert share == ([[PAD]],) * 3
                continue
            for part, of_batch in zip(share, batch, strict=True):
                assert [drop_padding(row) for row in part] == [
                    drop_padding(row) for row in of_batch[index::count]
                ]


def drop_padding(row):
    return [id for id in row if id != PAD]
