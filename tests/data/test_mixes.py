"""Mixes of corpora: each has its share of every pass, and no pair comes before its turn."""

import collections

import numpy as np
import pytest

from keras_transformer.data.dataset import BatchStream, open_corpora, stream_dataset
from keras_transformer.data.pairs import EncodedPairs
from keras_transformer.data.planning import bucket_boundaries
from keras_transformer.data.prepared_corpus import PreparedCorpus, prepare_corpus
from keras_transformer.presets import PrepareConfig
from tests.support.numbered_pairs import batches_of, sentences_of
from tests.support.reversed_text import write_corpus

SIZES, WEIGHTS = [101, 17, 40], [1.0, 2.0, 0.3]
# Of 158 pairs, 158 · 1/3.3, 158 · 2/3.3 and 158 · 0.3/3.3: 47.88, 95.76 and 14.36.
SHARES = [48, 96, 14]


def corpus_of(size, first):
    """Pairs of random lengths; the first id of both sides numbers them from `first` on."""
    lengths = np.random.default_rng(first).integers(1, 20, (2, size))
    return EncodedPairs(
        *(
            sentences_of([[first + i] + [9] * (length - 1) for i, length in enumerate(side)])
            for side in lengths
        )
    )


def stream_of(seed=6, **options):
    corpora = [corpus_of(size, 1000 * (i + 1)) for i, size in enumerate(SIZES)]
    options |= dict(tokens_per_batch=77, max_length=20, boundaries=np.array(bucket_boundaries(20)))
    return BatchStream(corpora, WEIGHTS, seed=seed, **options)


def passes_of(stream, count):
    """The pairs of each pass, as (corpus, number)."""
    for number in range(count):
        batches = [stream.batch(number, index) for index in range(stream.batches_in(number))]
        yield [divmod(row[0] - 1000, 1000) for source, _, _ in batches for row in source.tolist()]
        assert stream.after((number, 0), len(batches)) == (number + 1, 0)


def test_shares_are_exact_and_pairs_come_equally_often():
    counts = collections.Counter()
    for found in passes_of(stream_of(), 7):
        in_pass = collections.Counter(corpus for corpus, _ in found)
        assert [in_pass[corpus] for corpus in range(3)] == SHARES
        counts.update(found)
        for corpus, size in enumerate(SIZES):
            often = [counts[corpus, number] for number in range(size)]
            assert max(often) - min(often) <= 1


def test_passes_are_drawn_from_the_seed():
    one, same, other = (list(passes_of(stream_of(seed), 3)) for seed in (6, 6, 7))
    assert one == same != other
    assert sorted(one[0]) != sorted(one[1])


def test_sorted_where_nothing_is_drawn():
    """Each corpus from its beginning, and on from there."""
    first, second = passes_of(stream_of(None), 2)
    assert sorted(first)[:48] == [(0, number) for number in range(48)]
    assert sorted(second)[:48] == [(0, number) for number in range(48, 96)]


def test_passes_may_have_different_numbers_of_batches():
    whole = batches_of(stream_dataset(stream_of(repeat=True)).take(150))
    sizes = [stream_of().batches_in(number) for number in range(4)]
    assert len(set(sizes)) > 1 and sum(sizes) < 150
    dataset = stream_dataset(stream_of())
    assert len(dataset) == dataset.stream.batches_per_pass == sizes[0]
    assert batches_of(dataset) == whole[: sizes[0]]
    assert dataset.stream.position == (1, 0)
    for step in (0, 5, sizes[0], sizes[0] + sizes[1] - 1, sum(sizes[:3]) + 4):
        dataset.stream.position = position = dataset.stream.after((0, 0), step)
        assert step == sum(sizes[: position[0]]) + position[1] and position[1] < sizes[position[0]]
        assert batches_of(dataset) == whole[step : step + sizes[0]]
        assert dataset.stream.position == dataset.stream.after((0, 0), step + sizes[0])


@pytest.mark.parametrize("size", [0, 3])
def test_a_corpus_without_a_pair_to_learn_from(size):
    empty = EncodedPairs(sentences_of([[]] * size), sentences_of([[4]] * size))
    with pytest.raises(ValueError, match=f"No sentence pairs remain .* kept 0 of {size} pairs"):
        sizes = dict(tokens_per_batch=77, max_length=20, boundaries=np.array([20]))
        BatchStream([corpus_of(5, 1000), empty], [1, 1], **sizes)


def test_corpora_of_other_vocabularies(tmp_path):
    for name, size in (("a", 300), ("b", 301)):
        text = write_corpus(tmp_path, 300, 1)
        options = PrepareConfig(*text, vocabulary_size=size, valid_fraction=0.1)
        prepare_corpus(options, tmp_path / name, processes=1)
    corpora = [(tmp_path / "a", 3), (PreparedCorpus(tmp_path / "b"), 1)]
    with pytest.raises(ValueError, match="b was prepared with other vocabularies than .*a: only"):
        open_corpora(corpora)
    opened, weights = open_corpora([corpora[0], (tmp_path / "a", 0.5)])
    assert weights == [3, 0.5] and len(opened[0]) == len(opened[1]) > 250
