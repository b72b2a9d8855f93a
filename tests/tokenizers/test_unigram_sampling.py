"""Segmentations of a unigram model: drawn by the probabilities that all of them have."""

import collections
import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import sentencepiece

from keras_transformer.tokenizers import subword_sampling
from keras_transformer.tokenizers.pieces import ModelPieces
from keras_transformer.tokenizers.subword_sampling import UnigramSampling, pair_keys
from keras_transformer.tokenizers.training import train_sentencepiece
from tests.support.sample_text import BYTES, LINES, TEXTS, WORDS

COUNT = 4000


@functools.cache
def trained():
    """A model and sentencepiece's processor of it."""
    mingled = [a[:i] + b[j:] for a in WORDS for b in WORDS for i in (2, 3, 4) for j in (1, 2, 3)]
    model = train_sentencepiece(LINES + mingled, (), 500, "unigram", False, True)
    return model, sentencepiece.SentencePieceProcessor(model_proto=model)


def sampled(sampler, rows, keys):
    """What a sampler makes of rows of ids, as lists."""
    ids = np.fromiter(itertools.chain(*rows), np.int32)
    ids, lengths = sampler(ids, np.array([len(row) for row in rows], int), keys)
    assert ids.dtype == np.int32 and lengths.dtype == np.int64 and len(lengths) == len(rows)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths))[:-1]]


def drawn_of(text, smoothing):
    """How often each segmentation is drawn."""
    model, processor = trained()
    sampler = UnigramSampling(ModelPieces(model), smoothing)
    keys = pair_keys(3, 1, 1, np.arange(COUNT))
    rows = sampled(sampler, [processor.encode(text)] * COUNT, keys)
    return collections.Counter(map(tuple, rows))


def segmentations(text, vocabulary):
    """All ways to cut a text into pieces, by trying, and their scores."""
    if not text:
        yield (), 0.0
    for id in np.flatnonzero(vocabulary.normal).tolist():
        if text.startswith(vocabulary.pieces[id]):
            for rest, score in segmentations(text[len(vocabulary.pieces[id]) :], vocabulary):
                yield (id, *rest), score + float(vocabulary.scores[id])


@pytest.mark.parametrize("smoothing", [0.1, 0.7])
def test_drawn_by_the_probabilities_of_all_segmentations(smoothing):
    weights = {
        row: math.exp(smoothing * score)
        for row, score in segmentations("▁quick", ModelPieces(trained()[0]))
    }
    total = sum(weights.values())
    drawn = drawn_of("quick", smoothing)
    assert len(weights) > 8 and set(drawn) <= set(weights)
    often = [row for row in weights if weights[row] / total * COUNT >= 8]
    expected = [weights[row] / total * COUNT for row in often]
    found = [drawn[row] for row in often]
    if COUNT - sum(expected) > 8:
        expected, found = [*expected, COUNT - sum(expected)], [*found, COUNT - sum(found)]
    statistic = sum((x - y) ** 2 / y for x, y in zip(found, expected, strict=True))
    assert scipy.stats.chi2.sf(statistic, len(expected) - 1) > 1e-4


def test_as_often_as_sentencepiece_draws_it():
    _, processor = trained()
    text, smoothing = "lazy jumps", 0.5
    ours = drawn_of(text, smoothing)
    theirs = collections.Counter(
        tuple(row)
        for row in processor.encode(
            [text] * COUNT, enable_sampling=True, alpha=smoothing, nbest_size=-1
        )
    )
    often = [row for row in ours | theirs if ours[row] + theirs[row] >= 20]
    table = [
        [*(x[row] for row in often), COUNT - sum(x[row] for row in often)] for x in (ours, theirs)
    ]
    assert len(often) > 10 and scipy.stats.chi2_contingency(table).pvalue > 1e-4


def test_hostile_texts_stay_the_same_text():
    model, processor = trained()
    rows = processor.encode(TEXTS + BYTES)
    sampler = UnigramSampling(ModelPieces(model), 0.1)
    found = sampled(sampler, rows, pair_keys(0, 0, 0, np.arange(len(rows))))
    assert found != rows
    assert processor.decode(found) == processor.decode(rows)
    normal = ModelPieces(model).normal
    for row, other in zip(rows, found, strict=True):
        assert [id for id in row if not normal[id]] == [id for id in other if not normal[id]]


def test_both_sides_of_what_cannot_be_cut():
    model, processor = trained()
    normal = ModelPieces(model).normal
    left, right = set(), set()
    for row in drawn_of("quick☃quick", 0.2):
        atoms = [i for i, id in enumerate(row) if not normal[id]]
        assert len(atoms) == 3  # bytes
        left.add(row[: atoms[0]])
        right.add(row[atoms[-1] + 1 :])
    assert min(len(left), len(right)) > 3


def test_what_is_remembered_makes_no_difference(monkeypatch):
    model, processor = trained()
    rows = processor.encode(LINES + TEXTS[:17])
    keys = pair_keys(7, 0, 0, np.arange(len(rows)))
    expected = sampled(UnigramSampling(ModelPieces(model), 0.2), rows, keys)
    monkeypatch.setattr(subword_sampling, "_CACHED", 100)
    sampler = UnigramSampling(ModelPieces(model), 0.2)
    memories = []
    for i in range(0, len(rows), 5):
        assert sampled(sampler, rows[i : i + 5], keys[i : i + 5]) == expected[i : i + 5]
        memories.append(sampler._words)
    assert len({id(memory) for memory in memories}) > 3  # forgotten so often
