"""Texts cut into other pieces in every pass: all of them, and from the seed."""

import collections
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import sampled_batches
from keras_transformer.data.dataset import make_dataset
from keras_transformer.data.planning import bucket_boundaries
from keras_transformer.data.sampled_batches import SampledBatches
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tokenizers.subword import SubwordTokenizer

WORDS = "lower lowest newer newest wider widest low new wide".split()
LINES = [
    " ".join(words) for words in itertools.islice(itertools.permutations(WORDS, 3), 0, None, 5)
]
PAIRS = [(line, line[::-1]) for line in LINES]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    lines = [side for pair in PAIRS for side in pair]
    return SubwordTokenizer.train(lines, 285, request.param)


def dataset_of(tokenizer, pairs=PAIRS, **options):
    options = dict(subword_sampling=0.2, seed=4) | options
    return make_dataset(pairs, tokenizer, tokenizer, 300, 60, **options)


def as_lists(dataset):
    return [[x.numpy().tolist() for x in tf.nest.flatten(batch)] for batch in dataset]


def texts(tokenizer, batches):
    """The pairs of texts in some batches, and how often each came."""
    found = collections.Counter()
    for source, _, target in batches:
        sides = (tokenizer.detokenize(ids).numpy().tolist() for ids in (source, target))
        found.update((a.decode(), b.decode()) for a, b in zip(*sides, strict=True))
    return found


def test_a_pass(tokenizer):
    dataset = dataset_of(tokenizer)
    batches = as_lists(dataset)
    assert len(batches) == len(dataset) > 3
    assert texts(tokenizer, batches) == collections.Counter(PAIRS)
    for source, target_in, target_out in batches:
        assert len(source) * max(len(source[0]), len(target_out[0])) <= 300
        for row_in, row_out in zip(target_in, target_out, strict=True):
            length = sum(id != PAD for id in row_out)
            assert row_out[length - 1] == END and row_in[0] == START
            assert row_in[1:length] == row_out[: length - 1]


def test_passes_differ_and_hold_the_same_texts(tokenizer):
    dataset = dataset_of(tokenizer)
    first, second = as_lists(dataset), as_lists(dataset)
    assert len(first) == len(second) == len(dataset)
    assert texts(tokenizer, first) == texts(tokenizer, second) == collections.Counter(PAIRS)
    plain = pieces(as_lists(dataset_of(tokenizer, subword_sampling=0.0)))
    assert not pieces(first) == pieces(second) and not pieces(first) == plain
    assert (pieces(first) & plain).total() < 0.7 * len(PAIRS)  # the others are cut anew


def pieces(batches):
    """How often each pair of rows comes, without its padding."""
    return collections.Counter(
        tuple(tuple(id for id in row if id != PAD) for row in rows)
        for source, _, target in batches
        for rows in zip(source, target, strict=True)
    )


@pytest.mark.parametrize("block", [1, 3, 64])
def test_stream_goes_on_at_any_step(tokenizer, block, monkeypatch):
    for bound in ("MIN_BATCHES", "MAX_BATCHES"):
        monkeypatch.setattr(sampled_batches, bound, block)
    dataset = dataset_of(tokenizer)
    count = len(dataset)
    whole = [batch for _ in range(3) for batch in as_lists(dataset)]
    for step in (2 * count, 1, count):
        dataset.stream.position = dataset.stream.after((0, 0), step)
        assert as_lists(dataset) == whole[step : step + count]
    assert as_lists(dataset_of(tokenizer, seed=5)) != whole[:count]


def test_pieces_follow_from_the_pair_alone(tokenizer):
    """Not from how many tokens there are in a batch, which it shares with others then."""
    one = make_dataset(PAIRS, tokenizer, tokenizer, 600, 600, seed=4, subword_sampling=0.2)
    other = make_dataset(PAIRS, tokenizer, tokenizer, 6000, 600, seed=4, subword_sampling=0.2)
    common = pieces(as_lists(one)) & pieces(as_lists(other))
    assert common.total() > 0.8 * len(PAIRS)  # but for those that would not fit


def test_what_does_not_fit_is_not_cut_anew():
    """Sentences of the largest length that there is have no room for more pieces."""
    tokenizer = SubwordTokenizer.train(LINES, 285, "bpe")
    plain = tokenizer(LINES, end=True).to_list()
    longest = max(map(len, plain))
    lines = [line for line, ids in zip(LINES, plain, strict=True) if len(ids) == longest]
    pairs, options = [(line, line) for line in lines], dict(seed=4, subword_sampling=0.5)
    dataset = make_dataset(pairs, tokenizer, tokenizer, 9 * longest, longest, **options)
    room = make_dataset(pairs, tokenizer, tokenizer, 900, 60, **options)
    plain = pieces(as_lists(make_dataset(pairs, tokenizer, tokenizer, 900, 60)))
    assert max(len(row) for rows in pieces(as_lists(dataset)) for row in rows) == longest
    assert max(len(row) for rows in pieces(as_lists(room)) for row in rows) > longest
    assert (pieces(as_lists(dataset)) & plain).total() > (pieces(as_lists(room)) & plain).total()


def test_batches_are_as_full_as_plain_ones(tokenizer):
    """Although how long sentences get is drawn: what comes together is sorted by that."""
    random = np.random.default_rng(3)
    lines = [" ".join(random.choice(WORDS, size)) for size in random.integers(1, 9, 3001)]
    pairs = list(zip(lines, lines[::-1], strict=True))

    def padding(**options):
        batches = as_lists(dataset_of(tokenizer, pairs, **options))
        assert texts(tokenizer, batches) == collections.Counter(pairs)
        rows = [row for source, _, target in batches for row in source + target]
        return sum(row.count(PAD) for row in rows) / sum(map(len, rows)), len(batches)

    (plain, fewer), (sampled, more) = padding(subword_sampling=0.0), padding()
    assert sampled < plain + 0.06 and more > 1.1 * fewer


@pytest.mark.parametrize("growth", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("count", [9, 40])
def test_block_is_filled_into_as_many_batches_as_planned(growth, count):
    """Each pair comes once, as it was drawn where there is room; None where there is none."""
    random = np.random.default_rng(count)
    plain = random.integers(2, 20, (2, 301))
    drawn = plain + random.poisson(growth * plain)
    boundaries = np.array(bucket_boundaries(30))
    planner = SimpleNamespace(budget=200, boundaries=boundaries)
    batches = SampledBatches(None, None, None, None, None, planner, 25)._fill_batches(
        plain, drawn, count
    )
    if count == 9:
        assert batches is None
        return
    assert len(batches) == count and min(map(len, batches)) > 0
    rows = np.concatenate(batches)
    assert sorted(rows % 301) == list(range(301))
    lengths = np.concatenate([plain, drawn], axis=1)
    for batch in batches:
        longest = lengths[:, batch].max()
        assert len(batch) * boundaries[np.searchsorted(boundaries, longest)] <= 200
    use_sampled = rows >= 301
    assert lengths[:, rows].max() <= 25
    assert use_sampled.all() if not growth else 0 < use_sampled.mean() < 1


def test_validation_is_not_sampled(tokenizer):
    with pytest.raises(ValueError, match="subword_sampling is for training"):
        dataset_of(tokenizer, shuffle=False)
