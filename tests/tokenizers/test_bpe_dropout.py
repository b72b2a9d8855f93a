"""BPE-dropout written anew: held against sentencepiece's algorithm, and against its sampler."""

import collections
import functools
import gzip
import io
import itertools

import numpy as np
import pytest
import scipy.stats
import sentencepiece

from keras_transformer.tokenizers.pieces import ModelPieces
from keras_transformer.tokenizers.subword_sampling import BpeDropout, pair_keys
from keras_transformer.tokenizers.training import train_sentencepiece
from tests.support.bpe_agenda import merged_by_agenda
from tests.support.paths import ROOT
from tests.support.sample_text import BYTES, LINES, TEXTS

MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"
SPECIAL = dict(pad_id=0, unk_id=1, bos_id=2, eos_id=3, minloglevel=2, model_type="bpe")


@functools.cache
def trained(lowercase=False, nfkc=True):
    return train_sentencepiece(LINES, (), 400, "bpe", lowercase, nfkc)


def encoded(model, texts):
    """Ids of texts, as lists."""
    return sentencepiece.SentencePieceProcessor(model_proto=model).encode(list(texts))


def sampled(sampler, rows, keys):
    """What a sampler makes of rows of ids, as lists."""
    ids = np.fromiter(itertools.chain(*rows), np.int32)
    ids, lengths = sampler(ids, np.array([len(row) for row in rows], int), keys)
    assert ids.dtype == np.int32 and lengths.dtype == np.int64 and len(lengths) == len(rows)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths))[:-1]]


def merged_anew(model, rows):
    """Rows of ids cut into characters and merged again, nothing left out."""
    sampler = BpeDropout(ModelPieces(model), 0.0)
    sampler._unmade[:] = True  # else only what loses a merge is merged again
    return sampled(sampler, rows, np.zeros(len(rows), np.uint64))


@pytest.mark.parametrize("lowercase, nfkc", [*itertools.product((False, True), repeat=2)])
def test_without_dropout_pieces_are_those_of_encode(lowercase, nfkc):
    model = trained(lowercase, nfkc)
    rows = encoded(model, TEXTS + BYTES)
    assert merged_anew(model, rows) == rows
    keys = np.arange(len(rows), dtype=np.uint64)
    assert sampled(BpeDropout(ModelPieces(model), 0.0), rows, keys) == rows


@pytest.mark.skipif(not MULTI30K.exists(), reason="no Multi30k")
@pytest.mark.parametrize(
    "kind, size, step",
    [("raw", 4000, 9)]
    + [
        pytest.param(kind, size, 1, marks=pytest.mark.slow)
        for kind in ("raw", "tok")
        for size in (500, 9900)
    ],
)
def test_without_dropout_multi30k_is_as_encoded(kind, size, step):
    lines = [
        line
        for path in sorted((MULTI30K / kind).glob("train*"))
        for line in gzip.open(path, "rt", encoding="utf-8").read().split("\n")[::step]
    ]
    model = train_sentencepiece(lines, (), size, "bpe", False, True)
    for i in range(0, len(lines), 5000):
        rows = encoded(model, lines[i : i + 5000])
        assert merged_anew(model, rows) == rows


@pytest.mark.parametrize("dropout", [0.1, 0.6, 1.0])
def test_merges_are_those_of_sentencepiece_s_agenda(dropout):
    model = trained()
    rows = encoded(model, TEXTS + BYTES + LINES)
    keys = pair_keys(5, 3, 1, np.arange(len(rows)))
    expected = [merged_by_agenda(model, *pair, dropout) for pair in zip(rows, keys, strict=True)]
    assert sampled(BpeDropout(ModelPieces(model), dropout), rows, keys) == expected != rows


@pytest.mark.parametrize(
    "options",
    [
        dict(treat_whitespace_as_suffix=True),
        dict(split_by_whitespace=False),
        dict(add_dummy_prefix=False),
        dict(remove_extra_whitespaces=False, allow_whitespace_only_pieces=True),
        dict(user_defined_symbols=["qui", "▁fox"]),
        dict(byte_fallback=True, character_coverage=0.98),
    ],
    ids=lambda options: next(iter(options)),
)
def test_models_from_elsewhere(options):
    file = io.BytesIO()
    options = dict(vocab_size=390 if "byte_fallback" in options else 120) | SPECIAL | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=file, **options
    )
    model = file.getvalue()
    rows = encoded(model, ["the quick brown  fox 東", "", "jumps  over", *LINES[::7]])
    assert merged_anew(model, rows) == rows
    keys = pair_keys(0, 0, 0, np.arange(len(rows)))
    expected = [merged_by_agenda(model, *pair, 0.4) for pair in zip(rows, keys, strict=True)]
    assert sampled(BpeDropout(ModelPieces(model), 0.4), rows, keys) == expected != rows


def test_equal_scores_merge_from_the_left():
    """As in models converted from other systems; ours have a score for each piece."""
    pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc"]
    vocabulary = ModelPieces(trained())
    vocabulary.pieces = ["<pad>", "<unk>", "<s>", "</s>", *pieces]
    vocabulary.scores = np.array([0.0] * 8 + [-1.0] * 3 + [0.0], np.float32)
    vocabulary.normal = np.arange(12) >= 4
    vocabulary.unused = np.zeros(12, bool)
    sampler = BpeDropout(vocabulary, 0.0)
    # "aabc": the pair at the left first, then what it makes possible; "▁abc": not abc.
    spelled = np.array([5, 5, 6, 7, 4, 5, 6, 7])
    merged = sampler._merges(spelled, np.array([4, 4]))
    assert merged.tolist() == [5, 11, -1, -1, 10, -1, 9, -1]


def test_as_often_as_sentencepiece_draws_it():
    model = trained()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    count, dropout = 3000, 0.25
    sampler = BpeDropout(ModelPieces(model), dropout)
    for text in ("quick jumps", "Boxkämpfer"):
        keys = pair_keys(1, 2, 0, np.arange(count))
        ours = collections.Counter(
            map(tuple, sampled(sampler, [processor.encode(text)] * count, keys))
        )
        theirs = collections.Counter(
            tuple(row)
            for row in processor.encode([text] * count, enable_sampling=True, alpha=dropout)
        )
        assert len(ours) > 10
        common = [row for row in ours | theirs if ours[row] + theirs[row] >= 20]
        table = [[drawn[row] for row in common] for drawn in (ours, theirs)]
        table = [[*row, count - sum(row)] for row in table]  # the rare ones together
        assert scipy.stats.chi2_contingency(table).pvalue > 1e-4


def test_pieces_marked_as_unused_are_refused():
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained())
    vocabulary = ModelPieces(trained())
    vocabulary.unused[300:303] = True
    assert len(processor) == len(vocabulary)
    with pytest.raises(ValueError, match="without unused pieces, received one with 3"):
        BpeDropout(vocabulary, 0.1)
