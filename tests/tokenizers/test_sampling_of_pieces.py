"""Texts in other pieces: what is drawn, and that keys alone decide it, in any process."""

import collections
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.special_ids import END
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tokenizers.subword_sampling import pair_keys
from tests.support.paths import ROOT

WORDS = "lower lowest newer newest wider widest low new wide".split()
LINES = [
    " ".join(words) for words in itertools.islice(itertools.permutations(WORDS, 3), 0, None, 5)
]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    return SubwordTokenizer.train(LINES + [line[::-1] for line in LINES], 285, request.param)


def test_samples_spell_the_same_text(tokenizer):
    plain = tokenizer(LINES)
    sampled = tokenizer.sample(LINES, 0.2, seed=1)
    assert sampled.dtype == tf.int32 and sampled.nrows() == len(LINES)
    assert tokenizer.detokenize(sampled).numpy().tolist() == [line.encode() for line in LINES]
    assert sampled.flat_values.shape[0] > plain.flat_values.shape[0]
    closed = tokenizer.sample(LINES, 0.2, seed=1, end=True).to_list()
    assert closed == [[*row, END] for row in sampled.to_list()]


def test_samples_are_those_of_the_seed(tokenizer):
    one, same, other = (tokenizer.sample(LINES, 0.2, seed).to_list() for seed in (1, 1, 2))
    assert one == same != other
    equal_texts = tokenizer.sample(["lowest wider"] * 50, 0.5, seed=1).to_list()
    assert len({tuple(row) for row in equal_texts}) > 1


def test_dropout_of_merges():
    """A word of three merges stays whole with a probability of (1 − p)³."""
    tokenizer = SubwordTokenizer.train(["abc"] * 9 + ["ab"] * 9, 267, "bpe")
    count, dropout = 20_000, 0.3
    (whole,) = tokenizer(["abc"]).to_list()
    assert len(whole) == 1
    drawn = collections.Counter(
        tuple(row) for row in tokenizer.sample(["abc"] * count, dropout, seed=3).to_list()
    )
    merges = 3  # of ▁, a, b and c
    share = drawn[tuple(whole)] / count
    expected = (1 - dropout) ** merges
    assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / count)


def test_a_sentence_alone_as_in_a_batch(tokenizer):
    ids, keys = tokenizer(LINES), pair_keys(1, 2, 0, np.arange(len(LINES)))
    sampler = tokenizer.sampler(0.3)
    flat, lengths = sampler(ids.flat_values.numpy(), ids.row_lengths().numpy(), keys)
    rows = np.split(flat, np.cumsum(lengths))[:-1]
    for i in (0, 3, len(LINES) - 1):
        one, length = sampler(ids[i].numpy(), np.array([len(ids[i])]), keys[i : i + 1])
        assert one.tolist() == rows[i].tolist() and length == [len(one)]
    nothing = sampler(np.zeros(0, np.int32), np.zeros(0, int), keys[:0])
    assert [x.tolist() for x in nothing] == [[], []]
    gaps = sampler(flat[:0], np.zeros(3, int), keys[:3])
    assert [x.tolist() for x in gaps] == [[], [0, 0, 0]]


@pytest.mark.parametrize("model_type", ["char", "word"])
def test_other_types_have_one_segmentation(model_type):
    tokenizer = SubwordTokenizer.train(LINES, None if model_type == "char" else 12, model_type)
    assert tokenizer.sample(LINES, 0.5, 1).to_list() == tokenizer(LINES).to_list()


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
        seed, number_of_pass, side, corpus, pair = numbers
        assert pair_keys(seed, number_of_pass, side, np.array([pair]), corpus).tolist() == [key]
    several = [pair_keys(*x, np.arange(1000)) for x in itertools.product((0, 1), (0, 1), (0, 1))]
    assert len(set(np.concatenate(several).tolist())) == 8000


def test_processes_draw_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "model.spm")
    code = f"""
import sys, numpy as np
sys.argv[0] = "keras-transformer"
from keras_transformer.tokenizers.subword_sampling import pair_keys
from keras_transformer.tokenizers.subword_sampling import subword_sampler
sampler = subword_sampler(open({str(tmp_path / "model.spm")!r}, "rb").read(), 0.3)
ids, lengths = np.load(sys.argv[1]), np.load(sys.argv[2])
for seed in (1, 2):
    print(sampler(ids, lengths, pair_keys(seed, 0, 0, np.arange(len(lengths))))[0].tolist())
assert "tensorflow" not in sys.modules
"""
    ids = tokenizer(LINES)
    paths = tmp_path / "ids.npy", tmp_path / "lengths.npy"
    for path, array in zip(paths, (ids.flat_values, ids.row_lengths()), strict=True):
        np.save(path, array.numpy())
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, *paths],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = [tokenizer.sample(LINES, 0.3, seed).flat_values.numpy().tolist() for seed in (1, 2)]
    assert outputs == ["".join(f"{row}\n" for row in here)] * 2
