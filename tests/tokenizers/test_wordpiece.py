"""WordPieceTokenizer: held id for id against the BERT tokenizer."""

import functools
import gzip
import random
import re
import unicodedata

import pytest
import tensorflow as tf
from tokenizers import BertWordPieceTokenizer

import keras_transformer as kt
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.wordpiece import normalize
from tests.support.paths import ROOT
from tests.support.sample_text import BYTES, LINES, TEXTS

DATA = ROOT.parent / "shared" / "data"
BERT = DATA / "wordpiece" / "bert_uncased_vocab.txt"
TEXT = DATA / "multi30k" / "raw" / "train.en.gz"
PIECES = "the quick brown fox ##es jump ##s over lazy dog ##g ##e ' re , . 東 é ##é e ##r o ## /usr"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A cased tokenizer of a few pieces, with special ones in another order."""
    path = tmp_path_factory.mktemp("small") / "vocab.txt"
    path.write_text("\n".join(["[UNK]", *PIECES.split(), "[PAD]", "[CLS]"]) + "\n")
    return kt.WordPieceTokenizer.from_vocabulary(path, lowercase=False)


def differing(ours, oracle, texts):
    """The texts that ours and BERT's tokenizer cut differently."""
    theirs = [one.ids for one in oracle.encode_batch(texts, add_special_tokens=False)]
    pairs = zip(texts, ours.file_ids(ours(texts)).to_list(), theirs, strict=True)
    return [text for text, a, b in pairs if a != b]


@pytest.mark.skipif(not (BERT.exists() and TEXT.exists()), reason="the data is not here")
def test_text_is_cut_as_by_bert():
    ours = kt.WordPieceTokenizer.from_vocabulary(BERT, lowercase=True)
    ids = ours("The cat slept on the couch.It was too tired to get up.")
    assert ours.vocabulary_size == 30522 and ids.numpy().min() > END
    assert ours.file_ids(ids).numpy().tolist() == [
        *(1996, 4937, 7771, 2006, 1996, 6411, 1012, 2009),
        *(2001, 2205, 5458, 2000, 2131, 2039, 1012),
    ]
    assert ours.file_ids([PAD, UNK, START, END]).numpy().tolist() == [0, 100, 101, 102]
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[:10_000]
    assert differing(ours, BertWordPieceTokenizer(str(BERT), lowercase=True), lines) == []


@functools.cache
def characters():
    """Characters by category, of those that Unicode has not changed its mind about for long."""
    kinds = {}
    for code in range(0x30000):
        kind = unicodedata.category(chr(code))
        if kind == unicodedata.ucd_3_2_0.category(chr(code)) and kind not in ("Cs", "Cn"):
            kinds.setdefault(kind, []).append(chr(code))
    return kinds


def hostile_texts(count):
    """Words of anything, marks and controls anywhere, capital sigmas, words without an end."""
    draw = random.Random(30)
    kinds = list(characters().values()) + [list("aàÀ ΣσİIß①ﬁ'.-\t\r\n\x00\ufffd#")] * 6

    def word():
        return "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 9)))

    texts = [" ".join(word() for _ in range(draw.randint(1, 9))) for _ in range(count)]
    for row in range(0, count, 50):
        texts[row] += draw.choice(["ΟΔΟΣ", "ab" * 60, "ж" * 101, "word" * 120])
    return texts


def has_final_sigma(text):
    """Lower case goes by the letters around, as it does of a capital sigma at a word's end only."""
    text = unicodedata.normalize("NFD", text.replace("\ufffd", ""))
    letters = "".join(c for c in text if unicodedata.category(c) not in ("Mn", "Cc", "Cf", "Co"))
    return letters.lower() != "".join(c.lower() for c in letters)


has_long_word = re.compile(r"\S{101}").search


@pytest.mark.parametrize("lowercase", [False, True])
def test_hostile_strings_differ_for_two_reasons_only(lowercase, tmp_path):
    """Of a vocabulary with a piece for every character, which lets none of them hide in [UNK]."""
    texts = hostile_texts(1000) + TEXTS
    cleaned = b"".join(normalize(tf.constant(texts), lowercase).numpy()).decode()
    known = [character for character in sorted({*cleaned, "ς", "σ"}) if not character.isspace()]
    pieces = ["[UNK]", "[SEP]", "[CLS]", *known, *(f"##{character}" for character in known)]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)), encoding="utf-8")
    ours = kt.WordPieceTokenizer.from_vocabulary(tmp_path / "vocab.txt", lowercase)
    oracle = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=lowercase)
    found = differing(ours, oracle, texts)
    assert [t for t in found if not (has_final_sigma(t) or has_long_word(t))] == []
    assert any(map(has_long_word, found)) and len(found) < 50
    assert any(not has_long_word(text) for text in found) is lowercase  # those with a sigma
    # What we have instead, in Greek and in words of 101 characters to 400 bytes.
    assert UNK not in ours("ж" * 101).numpy() and ours("ж" * 201).numpy().tolist() == [UNK]
    assert (ours("ΟΔΟΣ").numpy().tolist() == ours("οδος").numpy().tolist()) is lowercase


def test_what_it_cuts_and_loses(small):
    ids = small("the foxes're over,dogge. 東quick")
    pieces = [piece.decode() for piece in small.pieces(ids).numpy()]
    assert pieces == "the fox ##es ' re over , dog ##g ##e . 東 quick".split()
    assert small.detokenize(ids).numpy().decode() == "the foxes ' re over , dogge . 東 quick"
    assert small.detokenizing_loses == "spaces around punctuation"
    # A word with a character that no piece has is unknown as a whole.
    assert [id == UNK for id in small("the foxz The").numpy()] == [False, True, True]
    # Composed and decomposed are two things to a cased vocabulary, accents and all.
    assert small("é").numpy().tolist() != [UNK] and UNK in small("e\u0301").numpy()


def test_special_ids_are_ours(small):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES.split()]
    ids, count = list(range(len(pieces))), len(PIECES.split())
    assert small.vocabulary_size == len(pieces)
    assert [piece.decode() for piece in small.pieces(ids).numpy()] == pieces
    # The file begins with [UNK], ends with [PAD] and [CLS], and has no [SEP].
    in_file = [count + 1, 0, count + 2, -1, *range(1, 1 + count)]
    assert small.file_ids(ids).numpy().tolist() == in_file
    assert small.detokenize([START, 4, PAD, UNK, END]).numpy() == b"the [UNK]"
    # Text that looks like one is not one.
    assert not {PAD, START, END} & set(small("[CLS] [SEP][PAD]").numpy().tolist())
    # Ids out of range are unknown.
    wild = [[4, -1, 10**9], [small.vocabulary_size, 5, -(2**31)]]
    assert small.detokenize(wild).numpy().tolist() == [b"the [UNK] [UNK]", b"[UNK] quick [UNK]"]
    assert small.pieces(wild).numpy()[:, ::2].tolist() == [[b"the", b"[UNK]"], [b"[UNK]"] * 2]
    assert small.file_ids(tf.constant([99], tf.int64)).numpy().tolist() == [0]
    # Of several texts; of the call, see test_subword.py: it is the base's.
    assert small.pieces(small(["the fox", ""])).to_list() == [[b"the", b"fox"], []]


def test_bytes_that_are_no_words(small):
    for raw in (*BYTES, b"the \xff\xfe fox", "\ue000the\u200b \x07fox"):
        text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        kept = "".join(c for c in text if unicodedata.category(c)[0] != "C" and c != "\ufffd")
        assert small(raw).numpy().tolist() == small(kept).numpy().tolist()


def test_saved_and_loaded(tmp_path):
    for lowercase, written in ((False, "Zwölf"), (True, "zwolf")):
        tokenizer = kt.WordPieceTokenizer.train(LINES, 125, lowercase)
        tokenizer.save(tmp_path / "source.wordpiece")
        loaded = kt.WordPieceTokenizer.load(tmp_path / "source.wordpiece")
        assert loaded.model == tokenizer.model and loaded.lowercase is lowercase
        assert loaded(TEXTS).to_list() == tokenizer(TEXTS).to_list()
        assert ("capitals" in loaded.detokenizing_loses) is lowercase
        assert loaded.detokenize(loaded("Zwölf")).numpy().decode() == written
