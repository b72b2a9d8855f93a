"""Lines that rounding decides are found, and all that two builds cut differently are among them."""

import gzip
import itertools

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.tokenizers.ties import Ties
from tests.support.hostile_lines import hostile, lines_with_numbers, repetitive
from tests.support.paths import ROOT
from tests.support.sample_text import LINES

MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"


def served_and_packaged(model, lines):
    """Which lines the served operation and the package cut differently, and which are found."""
    served = kt.SubwordTokenizer(model)(lines)
    served, splits = served.flat_values.numpy(), served.row_splits.numpy()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    packaged = processor.encode(lines)
    lengths = np.array([len(row) for row in packaged])
    ids = np.fromiter(itertools.chain.from_iterable(packaged), np.int32)
    differing = {
        row
        for row, (start, end) in enumerate(itertools.pairwise(splits.tolist()))
        if served[start:end].tolist() != packaged[row]
    }
    return differing, set(Ties(processor).find(ids, lengths).tolist())


@pytest.fixture(scope="module")
def text():
    return lines_with_numbers()


@pytest.mark.parametrize("model_type", ["bpe", "char", "word"])
@pytest.mark.parametrize("nfkc", [True, False])
def test_other_types_are_cut_alike(text, model_type, nfkc):
    size = {"bpe": 600, "word": 90, "char": None}[model_type]
    model = kt.SubwordTokenizer.train(text, size, model_type, lowercase=not nfkc, nfkc=nfkc).model
    differing, found = served_and_packaged(model, hostile(1500) + repetitive(300))
    assert not differing and not found


def test_what_is_cut_differently_is_found(text):
    """And it is needed: hundreds of these lines are."""
    model = kt.SubwordTokenizer.train(text, 700, "unigram").model
    lines = hostile(1500) + repetitive(700)
    differing, found = served_and_packaged(model, lines)
    assert differing and differing <= found
    assert len(found) < len(lines), "some are certain"


def test_plain_text_is_certain(text):
    """Lines without words that can be cut in several ways alike are not sent elsewhere."""
    model = kt.SubwordTokenizer.train(text, 700, "unigram").model
    assert served_and_packaged(model, [line.encode() for line in LINES])[1] == set()


def test_empty_lines_do_not_shift_the_others(text):
    model = kt.SubwordTokenizer.train(text, 700, "unigram").model
    lines = [b"", b"", b"the fox", b"", b"0000000000000 0000000", b"", b"the fox", b""]
    assert served_and_packaged(model, lines)[1] == {4}
    assert served_and_packaged(model, [b"", b""])[1] == set()


@pytest.mark.slow
@pytest.mark.skipif(not MULTI30K.exists(), reason="needs Multi30k in ../shared/data")
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_all_of_multi30k(model_type):
    lines = []
    for path in sorted(MULTI30K.glob("*/*.gz")):
        lines += gzip.decompress(path.read_bytes()).split(b"\n")
    sample = [line.decode() for line in lines[::23]]
    model = kt.SubwordTokenizer.train(sample, 4000, model_type).model
    differing, found = served_and_packaged(model, lines)
    assert len(lines) > 120_000 and differing <= found and len(found) < 100
