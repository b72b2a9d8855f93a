"""Embeddings that begin as word vectors: files and scale; frozen ones: `test_token_trainer.py`."""

import gzip

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training.word_vectors import check_vectors, read_vectors

LINES = ["the quick brown fox", "the lazy dogs jump", "zwei 7 fox"] * 9


@pytest.fixture(scope="module")
def words():
    return kt.SubwordTokenizer.train(LINES, model_type="word")


def lines_of(table, end="\n"):
    return [f"{word} {' '.join(map(repr, row.tolist()))}{end}" for word, row in table.items()]


def write_vectors(path, words, width):
    rows = np.random.default_rng(7).normal(0.1, 0.3, (len(words), width)).astype("float32")
    table = dict(zip(words, rows, strict=True))
    path.write_text("".join(lines_of(table)))
    return table


def embedding_of(tokenizer, d_model=8):
    embedding = kt.PositionalEmbedding(tokenizer.vocabulary_size, d_model)
    embedding.build()
    return embedding


def test_one_factor_brings_them_to_the_deviation_of_the_embedding(words, tmp_path):
    table = write_vectors(tmp_path / "v", ["fox", "the", "jump", "dogs", "unheard-of"], 8)
    embedding = embedding_of(words)
    before = np.array(embedding.embeddings)
    counts = np.bincount(words(LINES).flat_values, minlength=words.vocabulary_size)
    counts[1] += 5  # what is unknown is part of a text
    coverage = kt.initialize_embeddings(embedding, words, tmp_path / "v", counts)
    after = np.array(embedding.embeddings)
    ids = {word: int(words(word)[0]) for word in ("fox", "the", "jump", "dogs")}
    rows = np.array([table[word] for word in ids])
    ours = after[list(ids.values())]
    np.testing.assert_allclose(ours / rows, ours[0, 0] / rows[0, 0], rtol=1e-5)
    assert np.sqrt(np.mean(np.square(ours))) == pytest.approx(8**-0.5)
    others = np.delete(np.arange(len(after)), list(ids.values()))
    np.testing.assert_array_equal(after[others], before[others])
    assert (coverage.types, coverage.types_covered) == (words.vocabulary_size - 4, 4)
    assert (coverage.tokens, coverage.tokens_covered) == (9 * 11 + 5, 9 * (2 + 2 + 1 + 1))
    assert str(coverage).startswith("4 of 9 (44.4%) of the vocabulary and 54 of 104 (51.9%) of the")


def test_which_pieces_are_words(words, tmp_path):
    table = write_vectors(tmp_path / "v", ["fox", "ox", "▁fox", "##ox", "x", "<0x41>", "[UNK]"], 4)
    bpe = kt.SubwordTokenizer.train(["fox fox ox"] * 5, 268)
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", "fox", "x", "f", "##ox"]))
    wordpiece = kt.WordPieceTokenizer.from_vocabulary(tmp_path / "vocab.txt", lowercase=False)
    for tokenizer, expected in ((bpe, {"▁fox"}), (wordpiece, {"fox", "x"})):
        pieces = [p.decode() for p in tokenizer.pieces(range(tokenizer.vocabulary_size)).numpy()]
        embedding = embedding_of(tokenizer, 4)
        before = np.array(embedding.embeddings)
        kt.initialize_embeddings(embedding, tokenizer, tmp_path / "v")
        changed = np.flatnonzero((before != np.array(embedding.embeddings)).any(axis=1))
        assert expected <= {pieces[id] for id in changed} <= expected | {"▁ox", "ox"}
        rows = [table[pieces[id].removeprefix("▁")] for id in changed]
        factor = np.array(embedding.embeddings)[changed] / rows
        np.testing.assert_allclose(factor, factor[0, 0], rtol=1e-5)


def test_vectors_that_are_of_no_use(words, tmp_path):
    write_vectors(tmp_path / "v", ["chat", "renard"], 8)
    with pytest.raises(ValueError, match="has no vector for any of the 13 pieces"):
        kt.initialize_embeddings(embedding_of(words), words, tmp_path / "v")
    for value, message in (("0.0", "has only zero vectors"), ("1e99", "that are not finite")):
        (tmp_path / "v").write_text("fox" + f" {value}" * 8 + "\n")
        with pytest.raises(ValueError, match=message):
            kt.initialize_embeddings(embedding_of(words), words, tmp_path / "v")


WORDS = ["the", ",", ". . .", "at name@domain.com", "fox\u00a0s", "Zwölf", "1995", "</s>", "\x85"]
TABLE = np.random.default_rng(4).normal(0, 0.3, (9, 5)).astype("float32")
FORMATS = {"glove": ("", "\n"), "fasttext": ("9 5 \n", " \n"), "windows": ("9 5\r\n", "\r\n")}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name, tmp_path):
    header, end = FORMATS[name]
    content = (header + "".join(lines_of(dict(zip(WORDS, TABLE, strict=True)), end))).encode()
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(content) if name == "fasttext" else content)
    asked = ["the", "Zwölf", "fox\u00a0s", "1995", "\x85", "missing"]
    found = read_vectors(path, {word.encode() for word in asked}, 5)
    assert {word.decode() for word in found} == {*asked[:-1]}
    for word, vector in found.items():
        np.testing.assert_array_equal(vector.astype("float32"), TABLE[WORDS.index(word.decode())])
    check_vectors(path, 5)
    for width in (4, 6):
        for read in (check_vectors, lambda path, width: read_vectors(path, (), width)):
            with pytest.raises(ValueError, match=f"a word and {width} numbers, the width"):
                read(path, width)


def test_a_word_with_spaces_and_a_word_that_is_repeated(tmp_path):
    (tmp_path / "v").write_bytes(b", 0 0 0\n. . . 1.5 2.5 -1e-3\nthe 1 2 3\nthe 4 5 6\n\n\n")
    found = read_vectors(tmp_path / "v", {b"the", b"."}, 3)
    assert [*found] == [b"the"] and found[b"the"].tolist() == [1, 2, 3]


def test_bad_files(tmp_path):
    for content, message in (
        (None, r"v cannot be read \(No such file or directory\)"),
        (b"1 2\nfox " + b"\0" * 8, "vector 1 does not have 2 numbers: .* not a text"),
        (b"the 1.5 2.5\nfox 1.5\n", ": vector 2 does not have 2 numbers"),
        (b"3 2\nthe 1.5 2.5\nfox 1.5 2.5\n", "expected 3 vectors according to its"),
        (gzip.compress(b"the 1.5 2.5\n" * 50)[:-9], "truncated or corrupted"),
    ):
        if content is not None:
            (tmp_path / "v").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_vectors(tmp_path / "v", {b"the", b"fox"}, 2)
