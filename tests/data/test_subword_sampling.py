"""Texts cut into other pieces in every pass: what is drawn, and that it is drawn from the seed."""

import collections
import itertools

import pytest
import tensorflow as tf

from keras_transformer.data.dataset import make_dataset
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


def dataset_of(tokenizer, first_step=None, **options):
    options = dict(subword_sampling=0.2, seed=4) | options
    return make_dataset(PAIRS, tokenizer, tokenizer, 300, 60, first_step=first_step, **options)


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
    assert first != second and len(first) == len(second)
    common = texts(tokenizer, second) & collections.Counter(PAIRS)
    assert common.total() > 0.7 * len(PAIRS)  # a batch may be missing, another come twice


def test_endless_stream_goes_on_at_any_step(tokenizer):
    count = len(dataset_of(tokenizer))
    whole = as_lists(dataset_of(tokenizer, first_step=0).take(3 * count))
    for start in (1, count, 2 * count + 1):
        stream = dataset_of(tokenizer, first_step=start).take(3 * count - start)
        assert as_lists(stream) == whole[start:]
    assert as_lists(dataset_of(tokenizer, first_step=0, seed=5).take(3 * count)) != whole


@pytest.mark.parametrize("first_step", [None, 0])
def test_pipelines_are_not_tuned(tokenizer, first_step):
    assert dataset_of(tokenizer, first_step).options().autotune.enabled is False


def test_validation_is_not_sampled(tokenizer):
    with pytest.raises(ValueError, match="subword_sampling is for training"):
        dataset_of(tokenizer, shuffle=False)
