"""Lines that rounding decides are found, and all that two builds cut differently are among them."""

import gzip
import itertools
import random

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.tokenizers.ties import Ties
from tests.support.paths import ROOT
from tests.support.sample_text import BYTES, LINES, TEXTS

MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"
ODD = "\u2581\u200b\u200d\xa0\u3000\ufeff\u2028\x85\xad\ufffd\uffff\u202e\u2060\ufe0f\x00\x1b"


def hostile(count, seed=1):
    """Strings of odd characters, of characters at random, and bytes that are no UTF-8."""
    chooser = random.Random(seed)

    def character():
        kind = chooser.random()
        if kind < 0.3:
            return chr(chooser.randrange(32, 127))
        if kind < 0.5:
            return chooser.choice(ODD)
        return chr(chooser.randrange(0x80, 0xD800 if kind < 0.8 else 0x300))

    def line():
        text = bytearray("".join(character() for _ in range(chooser.randrange(40))).encode())
        for _ in range(chooser.choice([0, 0, 0, 1, 3]) if text else 0):
            text[chooser.randrange(len(text))] = chooser.randrange(256)
        return bytes(text)

    return [text.encode() for text in TEXTS] + BYTES + [line() for _ in range(count)]


def repetitive(count, seed=1):
    """Words that have many segmentations of the same pieces: numbers, and syllables repeated."""
    chooser = random.Random(seed)

    def word():
        unit = chooser.choice(["0", "0", "a", "ba", "haha", "x", ".", "12"])
        return unit * chooser.randrange(1, 12) + chooser.choice(["", "", "fox", ",000"])

    lengths = [chooser.choice([1, 4, 9, 40, 300]) for _ in range(count)]
    return [" ".join(word() for _ in range(length)).encode() for length in lengths]


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
    """Numbers, so that pieces of several digits are learned."""
    chooser = random.Random(3)
    numbers = [f"for {chooser.randrange(10**6):,} dollars or 10,000" for _ in range(300)]
    return [*LINES, *numbers]


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
