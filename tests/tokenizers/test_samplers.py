"""Random segmentations: held against sentencepiece's algorithm and sampler; keys alone decide."""

import collections
import functools
import gzip
import io
import itertools
import math

import numpy as np
import pytest
import scipy.stats
import sentencepiece
import tensorflow as tf

from keras_transformer.special_ids import END
from keras_transformer.tokenizers import subword_sampling
from keras_transformer.tokenizers.pieces import ModelPieces
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tokenizers.subword_sampling import BpeDropout, UnigramSampling, pair_keys
from keras_transformer.tokenizers.training import train_sentencepiece
from tests.support.bpe_agenda import merged_by_agenda
from tests.support.command_line import python
from tests.support.paths import ROOT
from tests.support.sample_text import BYTES, LINES, TEXTS, WORDS

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


# Unigram models.

COUNT = 4000


@functools.cache
def trained_unigram():
    """A model and sentencepiece's processor of it."""
    mingled = [a[:i] + b[j:] for a in WORDS for b in WORDS for i in (2, 3, 4) for j in (1, 2, 3)]
    model = train_sentencepiece(LINES + mingled, (), 500, "unigram", False, True)
    return model, sentencepiece.SentencePieceProcessor(model_proto=model)


def drawn_of(text, smoothing):
    """How often each segmentation is drawn."""
    model, processor = trained_unigram()
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
        for row, score in segmentations("▁quick", ModelPieces(trained_unigram()[0]))
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


def test_unigram_is_drawn_as_often_as_sentencepiece_draws_it():
    _, processor = trained_unigram()
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
    model, processor = trained_unigram()
    rows = processor.encode(TEXTS + BYTES)
    sampler = UnigramSampling(ModelPieces(model), 0.1)
    found = sampled(sampler, rows, pair_keys(0, 0, 0, np.arange(len(rows))))
    assert found != rows
    assert processor.decode(found) == processor.decode(rows)
    normal = ModelPieces(model).normal
    for row, other in zip(rows, found, strict=True):
        assert [id for id in row if not normal[id]] == [id for id in other if not normal[id]]


def test_both_sides_of_what_cannot_be_cut():
    model, processor = trained_unigram()
    normal = ModelPieces(model).normal
    left, right = set(), set()
    for row in drawn_of("quick☃quick", 0.2):
        atoms = [i for i, id in enumerate(row) if not normal[id]]
        assert len(atoms) == 3  # bytes
        left.add(row[: atoms[0]])
        right.add(row[atoms[-1] + 1 :])
    assert min(len(left), len(right)) > 3


def test_what_is_remembered_makes_no_difference(monkeypatch):
    model, processor = trained_unigram()
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


# Both, by the tokenizer.

FORMS = "lower lowest newer newest wider widest low new wide".split()
SENTENCES = [
    " ".join(words) for words in itertools.islice(itertools.permutations(FORMS, 3), 0, None, 5)
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    return SubwordTokenizer.train(
        SENTENCES + [line[::-1] for line in SENTENCES], 285, request.param
    )


def test_samples_spell_the_same_text(tokenizer):
    plain = tokenizer(SENTENCES)
    sampled = tokenizer.sample(SENTENCES, 0.2, seed=1)
    assert sampled.dtype == tf.int32 and sampled.nrows() == len(SENTENCES)
    assert tokenizer.detokenize(sampled).numpy().tolist() == [line.encode() for line in SENTENCES]
    assert sampled.flat_values.shape[0] > plain.flat_values.shape[0]
    closed = tokenizer.sample(SENTENCES, 0.2, seed=1, end=True).to_list()
    assert closed == [[*row, END] for row in sampled.to_list()]


def test_samples_are_those_of_the_seed(tokenizer):
    one, same, other = (tokenizer.sample(SENTENCES, 0.2, seed).to_list() for seed in (1, 1, 2))
    assert one == same != other
    equal_texts = tokenizer.sample(["lowest wider"] * 50, 0.5, seed=1).to_list()
    assert len({tuple(row) for row in equal_texts}) > 1


def test_a_sentence_alone_as_in_a_batch(tokenizer):
    ids, keys = tokenizer(SENTENCES), pair_keys(1, 2, 0, np.arange(len(SENTENCES)))
    sampler = tokenizer.sampler(0.3)
    flat, lengths = sampler(ids.flat_values.numpy(), ids.row_lengths().numpy(), keys)
    rows = np.split(flat, np.cumsum(lengths))[:-1]
    for i in (0, 3, len(SENTENCES) - 1):
        one, length = sampler(ids[i].numpy(), np.array([len(ids[i])]), keys[i : i + 1])
        assert one.tolist() == rows[i].tolist() and length == [len(one)]
    nothing = sampler(np.zeros(0, np.int32), np.zeros(0, int), keys[:0])
    assert [x.tolist() for x in nothing] == [[], []]
    gaps = sampler(flat[:0], np.zeros(3, int), keys[:3])
    assert [x.tolist() for x in gaps] == [[], [0, 0, 0]]


@pytest.mark.parametrize("model_type", ["char", "word"])
def test_other_types_have_one_segmentation(model_type):
    tokenizer = SubwordTokenizer.train(SENTENCES, None if model_type == "char" else 12, model_type)
    assert tokenizer.sample(SENTENCES, 0.5, 1).to_list() == tokenizer(SENTENCES).to_list()


@pytest.mark.parametrize("strength", [0.0, -0.1, 1.1, float("nan")])
def test_strength_out_of_range(tokenizer, strength):
    for sample in (tokenizer.sampler, lambda x: tokenizer.sample(["low"], x, seed=1)):
        with pytest.raises(ValueError, match="strength must be above 0"):
            sample(strength)


def test_keys_are_the_same_on_every_machine():
    def mixed(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    for numbers in ((0, 0, 0, 0, 0), (7, 3, 1, 2, 10**12), (-1, 0, 1, 0, 5)):
        key = 0
        for number in numbers:
            key = mixed((key + 0x9E3779B97F4A7C15) % 2**64 ^ number % 2**64)
        seed, pass_number, side, corpus, pair = numbers
        assert pair_keys(seed, pass_number, side, np.array([pair]), corpus).tolist() == [key]
    several = [pair_keys(*x, np.arange(1000)) for x in itertools.product((0, 1), (0, 1), (0, 1))]
    assert len(set(np.concatenate(several).tolist())) == 8000


def test_processes_draw_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "model.spm")
    code = f"""
import sys, numpy as np
sys.argv[0] = "keras-transformer"
from keras_transformer.tokenizers.subword_sampling import pair_keys, subword_sampler
sampler = subword_sampler(open({str(tmp_path / "model.spm")!r}, "rb").read(), 0.3)
ids, lengths = np.load(sys.argv[1]), np.load(sys.argv[2])
for seed in (1, 2):
    print(sampler(ids, lengths, pair_keys(seed, 0, 0, np.arange(len(lengths))))[0].tolist())
assert "tensorflow" not in sys.modules
"""
    ids = tokenizer(SENTENCES)
    paths = tmp_path / "ids.npy", tmp_path / "lengths.npy"
    for path, array in zip(paths, (ids.flat_values, ids.row_lengths()), strict=True):
        np.save(path, array.numpy())
    outputs = [python("-c", code, *paths, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    here = [tokenizer.sample(SENTENCES, 0.3, seed).flat_values.numpy().tolist() for seed in (1, 2)]
    assert outputs == ["".join(f"{row}\n" for row in here)] * 2
