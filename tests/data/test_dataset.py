"""Batches: what is in them, how full they are, and what is left out."""

import logging
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.data.dataset import make_dataset
from keras_transformer.data.pairs import Pair
from keras_transformer.data.planning import bucket_boundaries
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tokenizers.subword import SubwordTokenizer
from tests.support import child_process
from tests.support.numbered_pairs import (
    batches_of,
    dataset_of,
    numbers,
    pairs_of_lengths,
    random_pairs,
    trimmed,
)


def ids_of(text, tail=()):
    return [int(word) for word in text.split()] + list(tail)


# What a batch holds.


def test_teacher_forcing_by_hand():
    tokenizer = SubwordTokenizer.train(["abc def"], model_type="char")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    space, a, b, c, d, e, f = (processor.piece_to_id(piece) for piece in "▁abcdef")
    pairs = [("ab", "c def"), Pair("abc", "fed", "en")]
    dataset = make_dataset(pairs, tokenizer, tokenizer, 100, max_length=20, boundaries=[5, 9, 20])
    ((source, target_in), target_out) = max(dataset, key=lambda batch: batch[0][0].shape[0])
    order = np.argsort(source.numpy()[:, 3])  # END is the lowest id here: "ab" first
    assert (source.dtype, target_in.dtype, target_out.dtype) == (tf.int32,) * 3
    assert source.numpy()[order].tolist() == [[space, a, b, END, PAD], [space, a, b, c, END]]
    assert target_in.numpy()[order].tolist() == [
        [START, space, c, space, d, e, f, PAD, PAD],
        [START, space, f, e, d, PAD, PAD, PAD, PAD],
    ]
    assert target_out.numpy()[order].tolist() == [
        [space, c, space, d, e, f, END, PAD, PAD],
        [space, f, e, d, END, PAD, PAD, PAD, PAD],
    ]


@pytest.mark.parametrize("tokens_per_batch", [30, 200, 10**6])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_once_a_pass(tokens_per_batch, shuffle):
    pairs = random_pairs(200)
    dataset = dataset_of(pairs, tokens_per_batch, shuffle=shuffle)
    expected = sorted((ids_of(source, [END]), ids_of(target)) for source, target in pairs)
    for _ in range(2):
        found = []
        for source, target_in, target_out in batches_of(dataset):
            for rows in zip(source, target_in, target_out, strict=True):
                read, given, wanted = map(trimmed, rows)
                assert given[0] == START and given[1:] + [END] == wanted
                found.append((read, given[1:]))
        assert sorted(found) == expected


@pytest.mark.parametrize("boundaries", [None, [10, 20, 30], [30]])
@pytest.mark.parametrize("tokens_per_batch", [30, 97, 1000])
def test_budget_and_boundaries(tokens_per_batch, boundaries):
    dataset = dataset_of(random_pairs(), tokens_per_batch, boundaries=boundaries)
    allowed = boundaries or bucket_boundaries(30)
    assert [spec.shape.rank for spec in tf.nest.flatten(dataset.element_spec)] == [2, 2, 2]
    rows = 0
    for (source, target_in), target_out in dataset:
        assert target_in.shape == target_out.shape
        for tensor in (source, target_out):
            count, length = tensor.shape
            longest = int(tf.reduce_max(tf.reduce_sum(tf.cast(tensor != PAD, tf.int32), axis=1)))
            assert length == min(boundary for boundary in allowed if boundary >= longest)
        assert count * max(source.shape[1], target_out.shape[1]) <= tokens_per_batch
        rows += count
    assert rows == 500


def padding_share(dataset):
    """The share of the sources' and targets' cells that is padding."""
    tensors = [tensor.numpy() for (source, _), target in dataset for tensor in (source, target)]
    return sum(np.sum(ids == PAD) for ids in tensors) / sum(ids.size for ids in tensors)


def test_little_is_padding_and_batches_are_full():
    """Lengths as in a corpus: log-normal, the translation up to a third longer or shorter."""
    generator = np.random.default_rng(3)
    source = generator.lognormal(3.0, 0.6, 20_000).clip(1, 120)
    target = (source * generator.uniform(0.75, 1.33, source.shape)).clip(1, 120)
    lengths = np.stack([source, target], axis=1).astype(int)
    dataset = dataset_of(pairs_of_lengths(lengths), 4096, max_length=128)
    assert padding_share(dataset) < 0.07
    assert len(dataset) < 1.07 * np.maximum(*(lengths + 1).T).sum() / 4096
    # Even where the lengths of the two sides have nothing to do with each other.
    assert padding_share(dataset_of(random_pairs(2000), 400)) < 0.09


def test_budget_is_used_to_the_last_token():
    for count, sizes in ((12, [3, 3, 3, 3]), (13, [1, 3, 3, 3, 3])):
        pairs = pairs_of_lengths([(9, 4)] * count)  # ten cells in a row, END included
        batches = batches_of(dataset_of(pairs, 30, max_length=10))
        assert sorted(len(source) for source, _, _ in batches) == sizes


# What is left out.


def test_dropped_pairs_are_counted(caplog):
    pairs = pairs_of_lengths([(4, 4), (5, 4), (4, 5), (6, 6), (9, 1), (1, 9), (1, 1)])
    pairs += [("", "7"), ("7", " "), ("", "")]
    with caplog.at_level(logging.INFO, "keras_transformer"):
        dataset = dataset_of(pairs, 100, max_length=5)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "WARNING",
            "kept 2 of 10 pairs; dropped 2 with an empty source, 1 with an empty target, "
            "3 with a source of more than 5 tokens, 2 with a target of more than 5 tokens",
        )
    ]
    rows = [row for source, _, _ in batches_of(dataset) for row in source]
    assert sorted(map(trimmed, rows)) == [[100, 9, 9, 9, END], [106, END]]


@pytest.mark.parametrize("tokens_per_batch, longest", [(20, 20), (600, 512)])
def test_longest_sentence_by_default(tokens_per_batch, longest):
    pairs = pairs_of_lengths([(length, 1) for length in (3, longest - 1, longest)])
    dataset = make_dataset(pairs, numbers, numbers, tokens_per_batch)
    rows = [row for source, _, _ in batches_of(dataset) for row in source]
    assert sorted(map(len, map(trimmed, rows))) == [4, longest]


def test_nothing_dropped_is_no_warning(caplog):
    with caplog.at_level(logging.INFO, "keras_transformer"):
        dataset_of(random_pairs(7))
    logged = [(record.levelname, record.message) for record in caplog.records]
    assert logged == [("INFO", "kept 7 of 7 pairs")]


# What it is for `fit`.


@pytest.mark.parametrize("repeat", [False, True])
def test_pipelines_are_not_tuned(repeat):
    """TensorFlow's tuner makes the end of a pipeline wait, for as long again as it ran at worst."""
    dataset = dataset_of(random_pairs(40), 100, repeat=repeat)
    assert dataset.options().autotune.enabled is False
    assert dataset.take(2).options().autotune.enabled is False
    # Nor is each second batch dropped, where two workers read it: they have `shard` for that.
    policy = dataset.options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


# What cannot be.


@pytest.mark.parametrize(
    "pairs, reason",
    [([], "kept 0 of 0 pairs."), ([("", "7"), ("7", "")], "dropped 1 with an empty source, 1 w")],
)
def test_nothing_is_left(pairs, reason):
    with pytest.raises(ValueError, match="No sentence pairs remain to learn from: ") as caught:
        dataset_of(pairs)
    assert reason in str(caught.value)


def test_budget_that_cannot_hold_a_sentence():
    assert len(dataset_of(pairs_of_lengths([(29, 20), (20, 29)]), 30, max_length=30)) == 2
    with pytest.raises(ValueError, match="tokens_per_batch=29 cannot hold .* max_length=30"):
        dataset_of(random_pairs(5), 29, max_length=30)


@pytest.mark.parametrize(
    "boundaries", [[], [10, 29], [30, 10], [10, 10, 30], [0, 30], [10, 201]], ids=str
)
def test_unfit_boundaries(boundaries):
    with pytest.raises(ValueError, match="must ascend .* max_length=30 to tokens_per_batch=200"):
        dataset_of(random_pairs(5), 200, boundaries=boundaries)
    assert len(dataset_of(random_pairs(5), 200, boundaries=np.array([10, 200]))) >= 1


TOKENIZERS = "source_tokenizer", "target_tokenizer"


def test_pairs_of_any_kind():
    """Any iterable of them, gone through once; nothing is read where a corpus is given as well."""
    pairs = random_pairs(40)
    dataset = dataset_of((pair for pair in pairs), seed=3)
    assert [batches_of(dataset) for _ in range(2)] == [
        batches_of(other) for other in [dataset_of(pairs, seed=3)] * 2
    ]


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(), "Data is missing: pass pairs, source_tokenizer"),
        (
            dict(pairs=[("1", "2")], corpus="/nowhere"),
            "Pass either corpus, or pairs and tokenizers",
        ),
        (
            dict(source_tokenizer=numbers, corpus="/nowhere"),
            "Pass either corpus, or pairs and tokenizers",
        ),
        (dict(pairs=[("1", "2")]), "The source tokenizer, a NoneType, lacks __call__"),
        (dict(corpus="/nowhere"), "/nowhere"),
        (dict(pairs=[("1", "2")], seed=-1), "seed must be at least 0, received -1"),
        (
            dict(pairs=[("1", "2")], **dict.fromkeys(TOKENIZERS, numbers), shard=(2, 2)),
            "shard must be .i, n. with i from 0 to n - 1",
        ),
        (dict(pairs=[("1", "2")], tokens_per_batch=0), "tokens_per_batch must be at least 1"),
        (dict(corpus=[]), "A mix must have at least one corpus, and weights above 0"),
        (dict(corpus=[("a", 1), ("b", 0.0)]), "and weights above 0, received weights 1, 0"),
        (dict(corpus=[("a", float("nan"))]), "and weights above 0, received weights nan"),
    ],
)
def test_what_to_read_is_said_once(given, message):
    with pytest.raises(ValueError, match=message):
        make_dataset(**given)


ENDS_WHILE_READING = """
import keras_transformer as kt

tokenizer = kt.SubwordTokenizer.train(["abcd"], model_type="char")
pairs = [("abcd" * 12, "cd" * 24)] * 60_000
batches = iter(kt.make_dataset(pairs, tokenizer, tokenizer, 1_000_000, max_length=100))
next(batches)
"""


def test_a_process_ends_while_the_next_batch_is_made():
    """TensorFlow waits for its prefetching thread, which waits for Python: it hung at exit."""
    result = child_process.run([sys.executable, "-c", ENDS_WHILE_READING], capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
