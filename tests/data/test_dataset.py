"""Batches: what is in them, in which order they come, and from any position on."""

import collections
import json
import logging
import time

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data.dataset import BatchStream, make_dataset, stream_dataset
from keras_transformer.data.pairs import EncodedPairs, Pair
from keras_transformer.data.planning import bucket_boundaries
from keras_transformer.special_ids import END, PAD, START
from tests.support import numbered_pairs
from tests.support.command_line import python
from tests.support.numbered_pairs import batches_of, dataset_of, numbers, random_pairs, trimmed


def test_teacher_forcing_by_hand():
    tokenizer = kt.SubwordTokenizer.train(["abc def"], model_type="char")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    space, a, b, c, d, e, f = (processor.piece_to_id(piece) for piece in "▁abcdef")
    pairs = [("ab", "c def"), Pair("abc", "fed", "en")]
    dataset = make_dataset(pairs, tokenizer, tokenizer, 100, max_length=20, boundaries=[5, 9, 20])
    ((source, target_in), target_out) = max(dataset, key=lambda batch: batch[0][0].shape[0])
    order = np.argsort(source.numpy()[:, 3])  # END is the lowest id here: "ab" first
    assert (source.dtype, target_in.dtype, target_out.dtype) == (tf.int32,) * 3
    assert source.numpy()[order].tolist() == [[space, a, b, END, PAD], [space, a, b, c, END]]
    one, other = [space, c, space, d, e, f], [space, f, e, d]
    expected = [[START, *one, PAD, PAD], [START, *other, PAD, PAD, PAD, PAD]]
    assert target_in.numpy()[order].tolist() == expected
    expected = [[*one, END, PAD, PAD], [*other, END, PAD, PAD, PAD, PAD]]
    assert target_out.numpy()[order].tolist() == expected


def test_dropped_pairs_are_counted(caplog):
    lengths = [(4, 4), (5, 4), (4, 5), (6, 6), (9, 1), (1, 9), (1, 1)]
    pairs = [*numbered_pairs.pairs_of_lengths(lengths), ("", "7"), ("7", " "), ("", "")]
    with caplog.at_level(logging.INFO, "keras_transformer"):
        dataset = dataset_of(pairs, 100, max_length=5)
        dataset_of(random_pairs(7))
    said = "kept 2 of 10 pairs; dropped 2 with an empty source, 1 with an empty target, "
    said += "3 with a source of more than 5 tokens, 2 with a target of more than 5 tokens"
    found = [(record.levelname, record.message) for record in caplog.records]
    assert found == [("WARNING", said), ("INFO", "kept 7 of 7 pairs")]
    rows = [row for source, _, _ in batches_of(dataset) for row in source]
    assert sorted(map(trimmed, rows)) == [[100, 9, 9, 9, END], [106, END]]


def test_shards_are_the_batch_together():
    whole, count = batches_of(dataset_of(random_pairs(60), 120)), 9  # more than some batches have
    for index in range(count):
        shard = batches_of(dataset_of(random_pairs(60), 120, shard=(index, count)))
        for share, batch in zip(shard, whole, strict=True):
            for part, rows in zip(share, batch, strict=True):
                expected = [trimmed(row) for row in rows[index::count]]
                assert [trimmed(row) for row in part] == (expected or [[]])


def rows_of(batches):
    rows = (row for batch in batches for row in zip(*batch, strict=True))
    return sorted(ids for row in rows if any(ids := [trimmed(side) for side in row]))


@pytest.mark.parametrize("count", [1, 5])
def test_batches_of_fixed_shapes(count):
    """The same pairs in one shape for each boundary, which XLA compiles; shards are filled too."""

    def read(**options):
        return batches_of(dataset_of(random_pairs(200), 96, 32, **options))

    shards = [read(fixed_shapes=True, shard=(i, count)) for i in range(count)]
    assert len(set(map(len, shards))) == 1
    shapes = {np.shape(batch) for shard in shards for batch in shard}
    assert shapes == {(3, -(-rows // count), n) for rows, n in ((6, 16), (4, 24), (3, 32))}
    assert sorted(sum(map(rows_of, shards), [])) == rows_of(read())


def test_order_is_that_of_seed_and_pass():
    pairs = random_pairs()
    dataset = dataset_of(pairs, seed=1)
    first, second = batches_of(dataset), batches_of(dataset)
    assert batches_of(dataset_of(pairs, seed=1)) == first
    for batches in (second, batches_of(dataset_of(pairs, seed=2))):
        numbers = sorted(row[0] - 100 for source, _, _ in batches for row in source)
        assert batches != first and numbers == list(range(500))
        # Not only the order of the batches: also which pairs of equal length come together.
        assert sorted(map(str, batches)) != sorted(map(str, first))
    # Batches are in the order of their lengths without shuffling only.
    unshuffled = batches_of(dataset_of(pairs, shuffle=False))
    for batches, is_sorted in ((first, False), (unshuffled, True)):
        lengths = [max(len(source[0]), len(target[0])) for source, _, target in batches]
        assert (lengths == sorted(lengths)) is is_sorted
    assert {*lengths} < {*bucket_boundaries(30)} and lengths[0] < 16, "finely"


def small(**options):
    return dataset_of(random_pairs(40), 100, seed=5, **options)


def uninterrupted(**options):
    """All batches of three passes, and how many there are in one."""
    dataset = small(**options)
    return [batch for _ in range(3) for batch in batches_of(dataset)], len(dataset)


@pytest.mark.parametrize("shuffle, repeat", [(True, False), (False, True)])
def test_goes_on_at_any_position(shuffle, repeat):
    whole, steps = uninterrupted(shuffle=shuffle)
    dataset = small(shuffle=shuffle, repeat=repeat)
    for step in (2 * steps - 1, 0, 1, steps - 1, steps, steps + 3):
        tf.random.set_seed(step)  # nobody else's seed has a say
        np.random.seed(step)
        dataset.stream.position = dataset.stream.after((0, 0), step)
        assert batches_of(dataset.take(steps)) == whole[step : step + steps]
    assert dataset.stream.batches_per_pass == steps
    # The position behind the last batch of a pass is the next one's begin.
    for position in ((1, 0), (0, steps)):
        dataset.stream.position = position
        assert batches_of(dataset.take(1)) == whole[steps : steps + 1]
    for position in ((-1, 0), (0, -1), (3, 10**6)):
        before = dataset.stream.position
        with pytest.raises(ValueError, match="position must be .pass, batch"):
            dataset.stream.position = position
        assert dataset.stream.position == before


def test_iterator_that_ends_moves_the_position():
    whole, steps = uninterrupted()
    dataset = small()
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
    dataset = dataset_of(random_pairs(count), 100)
    looked_at = iter(dataset)
    first = batches_of([next(looked_at)])
    time.sleep(0.05)
    assert dataset.stream.position == (0, 0)
    another = iter(dataset)
    assert batches_of([next(another)]) == first
    dataset.stream.position = (7, 2)
    for _ in another:
        pass
    assert dataset.stream.position == (7, 2), "nor does one that began before it was set"


PROGRAM = """
from tests.support.numbered_pairs import batches_of, dataset_of, random_pairs
import json
dataset = dataset_of(random_pairs(40), 100, seed=5)
dataset.stream.position = (1, 4)
print(json.dumps(batches_of(dataset)))

import keras_transformer as kt
tokenizer = kt.SubwordTokenizer.train(["abcd"], model_type="char")
pairs = [("abcd" * 12, "cd" * 24)] * 60_000
batches = iter(kt.make_dataset(pairs, tokenizer, tokenizer, 1_000_000, max_length=100))
next(batches)
"""


def test_another_process_has_the_same_batches_and_ends():
    """While TensorFlow's prefetching thread waits for Python, at whose exit it hung."""
    whole, steps = uninterrupted()
    start = steps + 4
    found = json.loads(python("-c", PROGRAM))
    assert found == [list(batch) for batch in whole[start : start + steps]]


def test_pipelines_are_not_tuned():
    """TensorFlow's tuner makes the end of a pipeline wait, for as long again as it ran at worst."""
    dataset = dataset_of(random_pairs(40), 100)
    assert dataset.take(2).options().autotune.enabled is False
    # Nor is each second batch dropped, where two workers read it: they have `shard` for that.
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


# Mixes of corpora: each has its share of every pass, and no pair comes before its turn.
SIZES, WEIGHTS = [101, 17, 40], [1.0, 2.0, 0.3]
# Of 158 pairs, 158 · 1/3.3, 158 · 2/3.3 and 158 · 0.3/3.3: 47.88, 95.76 and 14.36.
SHARES = [48, 96, 14]


def corpus_of(size, first):
    """Pairs of random lengths; the first id of both sides numbers them from `first` on."""
    lengths = np.random.default_rng(first).integers(1, 20, (2, size))
    rows = ([[first + i] + [9] * (n - 1) for i, n in enumerate(side)] for side in lengths)
    return EncodedPairs(*map(numbered_pairs.sentences_of, rows))


def mix_of(seed=6, **options):
    corpora = [corpus_of(size, 1000 * (i + 1)) for i, size in enumerate(SIZES)]
    options |= dict(tokens_per_batch=77, max_length=20, boundaries=np.array(bucket_boundaries(20)))
    return BatchStream(corpora, WEIGHTS, seed=seed, **options)


def passes_of(stream, count):
    for number in range(count):
        batches = [stream.batch(number, index) for index in range(stream.batches_in(number))]
        yield [divmod(row[0] - 1000, 1000) for source, _, _ in batches for row in source.tolist()]
        assert stream.after((number, 0), len(batches)) == (number + 1, 0)


def test_shares_are_exact_and_pairs_come_equally_often():
    counts = collections.Counter()
    passes = list(passes_of(mix_of(), 7))
    for found in passes:
        in_pass = collections.Counter(corpus for corpus, _ in found)
        assert [in_pass[corpus] for corpus in range(3)] == SHARES
        counts.update(found)
        for corpus, size in enumerate(SIZES):
            often = [counts[corpus, number] for number in range(size)]
            assert max(often) - min(often) <= 1
    assert sorted(passes[0]) != sorted(passes[1])
    one, other = (list(passes_of(mix_of(seed), 2)) for seed in (6, 7))
    assert one == passes[:2] != other
    # Where nothing is drawn, each corpus from its beginning, and on from there.
    for number, found in enumerate(passes_of(mix_of(None), 2)):
        assert sorted(found)[:48] == [(0, 48 * number + i) for i in range(48)]


def test_passes_may_have_different_numbers_of_batches():
    whole = batches_of(stream_dataset(mix_of(repeat=True)).take(150))
    sizes = [mix_of().batches_in(number) for number in range(4)]
    assert len(set(sizes)) > 1 and sum(sizes) < 150
    dataset = stream_dataset(mix_of())
    assert len(dataset) == dataset.stream.batches_per_pass == sizes[0]
    for step in (0, sizes[0], sizes[0] + sizes[1] - 1, sum(sizes[:3]) + 4):
        dataset.stream.position = position = dataset.stream.after((0, 0), step)
        assert step == sum(sizes[: position[0]]) + position[1] and position[1] < sizes[position[0]]
        assert batches_of(dataset) == whole[step : step + sizes[0]]
        assert dataset.stream.position == dataset.stream.after((0, 0), step + sizes[0])


PAIRS = dict(pairs=[("1", "2")])
GIVEN = PAIRS | dict(source_tokenizer=numbers, target_tokenizer=numbers)


def test_what_cannot_be_read():
    for given, message in (
        ({}, "Data is missing: pass pairs, source_tokenizer"),
        (PAIRS | dict(corpus="/nowhere"), "Pass either corpus, or pairs and tokenizers"),
        (PAIRS, "The source tokenizer, a NoneType, lacks __call__"),
        (GIVEN | dict(pairs=[("", "7")]), "kept 0 of 1 pair; dropped 1 with an empty source"),
        (GIVEN | dict(pairs=["hello world"]), "texts, received element 0: 'hello world'"),
        (GIVEN | dict(pairs=[("a",)]), r"received element 0: \('a',\)"),
        (GIVEN | dict(pairs=[("a", "b"), ("a", None)]), r"received element 1: \('a', None\)"),
        (GIVEN | dict(seed=-1), "seed must be at least 0, received -1"),
        (GIVEN | dict(shard=(2, 2)), "shard must be .i, n. with i from 0 to n - 1"),
        (GIVEN | dict(tokens_per_batch=0), "tokens_per_batch must be at least 1"),
        (GIVEN | dict(tokens_per_batch=9, max_length=10), "tokens_per_batch=9 cannot hold .*=10"),
        (GIVEN | dict(boundaries=[]), "boundaries must ascend to a length from max_length=512"),
        (GIVEN | dict(max_length=30, boundaries=[10, 29]), "must ascend .* received .10, 29."),
        (GIVEN | dict(max_length=30, boundaries=[10, 10, 30]), "must ascend"),
        (GIVEN | dict(boundaries=[0, 600]), "must ascend"),
        (GIVEN | dict(boundaries=[10, 8193]), "must ascend .* to tokens_per_batch=8192"),
        (dict(corpus=[]), "A mix must have at least one corpus, and weights above 0"),
        (dict(corpus=[("a", 1), ("b", 0.0)]), "and weights above 0, received weights 1, 0"),
        (dict(corpus=[("a", float("nan"))]), "and weights above 0, received weights nan"),
    ):
        with pytest.raises(ValueError, match=message):
            make_dataset(**given)
