"""Batches: what is in them, how full they are, and in which order they come."""

import collections
import itertools
import logging

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.corpora.pair import Pair
from keras_transformer.data.dataset import bucket_boundaries, make_dataset
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tokenizers.subword import SubwordTokenizer


def numbers(lines, end):
    """A tokenizer whose ids are written in the text: "7 8" is [7, 8]."""
    lines = [f"{line} {END}" for line in lines] if end else lines
    words = tf.strings.split(tf.constant(lines, tf.string, shape=[len(lines)]))
    return words.with_flat_values(tf.strings.to_number(words.flat_values, tf.int32))


def pairs_of_lengths(lengths):
    """Pairs of so many tokens, END not counted; the first token of both sides numbers the pair."""
    return [
        tuple(" ".join([str(100 + i)] + ["9"] * (length - 1)) for length in both)
        for i, both in enumerate(lengths)
    ]


def random_pairs(count=500, longest=29, seed=0):
    return pairs_of_lengths(np.random.default_rng(seed).integers(1, longest + 1, (count, 2)))


def dataset_of(pairs, tokens_per_batch=200, max_length=30, **options):
    return make_dataset(pairs, numbers, numbers, tokens_per_batch, max_length, **options)


def batches_of(dataset):
    """The batches as plain lists, to be compared: [(source, target_in, target_out), …]."""
    return [
        (source.numpy().tolist(), target_in.numpy().tolist(), target_out.numpy().tolist())
        for (source, target_in), target_out in dataset
    ]


def ids_of(text, tail=()):
    return [int(word) for word in text.split()] + list(tail)


def trimmed(row):
    """A row without its padding, which may stand at its end only."""
    length = sum(id != PAD for id in row)
    assert PAD not in row[:length]
    return row[:length]


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


# In which order.


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


def test_length_and_shapes():
    dataset = dataset_of(random_pairs(), 100)
    assert len(dataset) == len(batches_of(dataset)) > 20
    counts = collections.Counter(len(source) for source, _, _ in batches_of(dataset))
    assert len(counts) > 2  # rows per batch vary with their length
    assert [spec.shape.rank for spec in tf.nest.flatten(dataset.element_spec)] == [2, 2, 2]
    assert len(dataset_of(random_pairs(1), 30)) == 1


@pytest.mark.parametrize("repeat", [False, True])
def test_pipelines_are_not_tuned(repeat):
    """TensorFlow's tuner makes the end of a pipeline wait, for as long again as it ran at worst."""
    dataset = dataset_of(random_pairs(40), 100, repeat=repeat)
    assert dataset.options().autotune.enabled is False
    assert dataset.take(2).options().autotune.enabled is False


# What cannot be.


@pytest.mark.parametrize(
    "pairs, reason",
    [([], "kept 0 of 0 pairs."), ([("", "7"), ("7", "")], "dropped 1 with an empty source, 1 w")],
)
def test_nothing_is_left(pairs, reason):
    with pytest.raises(ValueError, match="No sentence pair is left to learn from: ") as caught:
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
