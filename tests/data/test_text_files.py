"""Parallel text files: what is read from them, and the sentence that tells what is wrong."""

import codecs
import gzip
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.data import text_files
from keras_transformer.data.pairs import Pair
from keras_transformer.data.text_files import read_lines, read_pairs, sample_rows


def write(path, text):
    content = text.encode("utf-8")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def refused(sentence, *arguments):
    with pytest.raises(ValueError) as caught:
        read_pairs(*arguments)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def by_hand(path, content):
    """What is read from the content of a file: its lines, or rows of a table, or an error."""
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            place = f"{path} line {number} is not valid UTF-8 at byte {error.start + 1}"
            return f"{place}: convert the file."
    if not lines:
        return f"{path} is empty: expected one sentence per line."
    lines = [line.removesuffix(b"\r").decode() for line in lines]
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows if path.suffix == ".tsv" else [], 1):
        if len(row) != 2:
            found = f"{len(row)} column{'s' * (len(row) > 1)}"
            return f"{path} line {number} has {found}, expected 2."
    return [Pair(*row) for row in rows] if path.suffix == ".tsv" else lines


def found_in(path):
    try:
        return (read_pairs if path.suffix == ".tsv" else read_lines)(path)
    except ValueError as error:
        return str(error)


# Ends of lines, marks, what str.splitlines takes for ends besides, halves of characters; any bytes.
TEXT = [b"\n", b"\n", b"\r\n", b"\r", b"\t", b"a\tb\n", b"c\td\r\n", b"\x00", b"word"]
TEXT += [one.encode() for one in "\ufeff\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1eé🙂"]
FRAGMENTS = [*TEXT, b"\xc3", b"\x80", b"\xed\xa0\x80"]
contents = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=3)).map(b"".join)
texts = st.lists(st.sampled_from(TEXT)).map(b"".join)


@given(
    contents | texts,
    st.sampled_from(["a.txt", "a.tsv", "a.gz"]),
    st.booleans(),
    st.sampled_from([3, 5, 8, 1 << 20]),
)
@example(b"one\ntwo\nthree\xff\n", "a.txt", False, 5)
@example(b"one\n\n\nfour\xff\n", "a.txt", False, 1 << 20)
@example("ab\n\ufeffb\n".encode(), "a.txt", False, 3)
@example("\ufeff\ufeffa\u2028b\x85d\x0be\x1ci\rj\r\n\n".encode(), "a.gz", True, 8)
@example(b"a\tb\nc\td\te\n", "a.tsv", False, 1 << 20)
def test_any_bytes_are_lines_or_a_sentence(tmp_path_factory, content, name, is_packed, size):
    path = tmp_path_factory.mktemp("text") / name
    is_packed |= path.suffix == ".gz" or content[:2] == text_files.GZIPPED
    path.write_bytes(gzip.compress(content) if is_packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "BLOCK", size)
        found = found_in(path)
    expected = by_hand(path, content)
    if path.suffix == ".tsv" and isinstance(found, str):  # the first block's error comes first
        assert isinstance(expected, str) and found.startswith(f"{path} ")
    else:
        assert found == expected


@given(st.data())
def test_damaged_packed_files_are_read_alike_or_named(tmp_path_factory, data):
    lines = [f"hello world {i}" for i in range(200)]
    whole = gzip.compress("\n".join(lines).encode(), mtime=1)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[place] ^ data.draw(st.integers(1, 255))
    cut = data.draw(st.booleans())
    path = tmp_path_factory.mktemp("packed") / "a.gz"
    path.write_bytes(whole[:place] + (b"" if cut else bytes([flipped]) + whole[place + 1 :]))
    found = found_in(path)
    assert found == lines or isinstance(found, str) and found.startswith(f"{path} "), found
    assert not cut or isinstance(found, str)


def test_text_from_a_pipe(tmp_path):
    """As the shell's <(zcat file) gives it, gzipped or not."""
    for content in (b"a\nb\n", gzip.compress(b"a\nb\n")):
        os.mkfifo(tmp_path / "pipe")
        threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,)).start()
        assert read_lines(tmp_path / "pipe") == ["a", "b"]
        (tmp_path / "pipe").unlink()


def test_files_that_cannot_be_read_or_are_not_parallel(tmp_path):
    good, bad = write(tmp_path / "good.txt", "a\n"), tmp_path / "bad.gz"
    refused(f"No file matches {bad}: check the path.", bad, good)
    bad.mkdir()
    refused(f"{bad} cannot be read (Is a directory)", good, bad)
    bad.rmdir()
    bad.write_bytes(b"no gzip\n")
    refused(f"{bad} cannot be read (Not a gzipped file", bad, good)
    longer = write(tmp_path / "longer", "1\n2\n3\n4\n5\n")
    shorter = write(tmp_path / "shorter", "1\n2\n3")
    end = f"{shorter} ends before line 4 of {longer}"
    refused(f"{longer} has 5 lines and {shorter} has 3: {end}", longer, shorter)
    refused(f"{shorter} has 3 lines and {longer} has 5: {end}", shorter, longer)


@pytest.mark.parametrize("table", ["a.tsv", "a.TSV", "a.tsv.gz"])
def test_a_table_needs_no_target(tmp_path, table):
    table, text = write(tmp_path / table, "a\tb\n"), write(tmp_path / "text", "a\n")
    assert read_pairs(table) == [("a", "b", "")]
    message = f"{table} has both source and target: omit --train-target"
    for other in (text, table):
        refused(f"{message}.", table, other, "--train-target")
    refused(f"{message}, and pass this file as the source.", text, table, "--train-target")
    refused(f"The target file is missing: pass the translations of {text}, or one .tsv", text)


def test_patterns_stand_for_files_in_the_order_of_their_names(tmp_path):
    for number in (2, 1, 3):
        write(tmp_path / f"part-{number}.en.gz", f"\ufeffa{number}\r\nb{number}")
        write(tmp_path / f"part-{number}.de", f"\ufeffx{number}\ny{number}\n")
    pairs = read_pairs(tmp_path / "part-*.en.gz", tmp_path / "part-*.de")
    sources, targets, _ = zip(*pairs, strict=True)
    assert sources == ("a1", "b1", "a2", "b2", "a3", "b3")
    assert targets == ("x1", "y1", "x2", "y2", "x3", "y3")
    odd = write(tmp_path / "part-[1].tsv", "odd\tname\n")
    assert read_pairs(odd) == [("odd", "name", "")], "a name that is one is no pattern"
    one, many = write(tmp_path / "one.de", "a\n"), tmp_path / "part-*.de"
    refused(f"{many} matches 3 files, but {one} matches 1: each source file must", many, one)
    (tmp_path / "part-2.de").rename(tmp_path / "part-4.de")
    wrong = f"{tmp_path}/part-2.en.gz would go with {tmp_path}/part-3.de: give both the same"
    refused(wrong, tmp_path / "part-*.en.gz", many)


PAIRS = [Pair(f"source {i % 50}", f"target {i}") for i in range(120)]


def split_validation(pairs, fraction, seed):
    blocks = [tuple([pair[side].encode() for pair in pairs] for side in (0, 1))]
    text = text_files.TrainingText(SimpleNamespace(blocks=lambda: blocks), fraction, seed)
    return [pair for block in text.blocks() for pair in text_files.decode(block)], text.valid


def test_no_source_is_on_both_sides():
    train, valid = split_validation(PAIRS, 0.1, seed=1)
    assert {pair.source for pair in train}.isdisjoint(pair.source for pair in valid)
    assert 0 < len({pair.source for pair in valid}) < 20
    assert sorted([*train, *valid]) == sorted(PAIRS)
    assert [pair for pair in PAIRS if pair in valid] == valid, "in their order"
    assert (train, valid) == split_validation(PAIRS, 0.1, seed=1)
    assert (train, valid) != split_validation(PAIRS, 0.1, seed=2)
    for fraction, part in ((1e-9, "validation"), (1 - 1e-9, "training")):
        with pytest.raises(ValueError, match=f"leaves no pairs for {part}: change it"):
            split_validation(PAIRS, fraction, seed=1)


@pytest.mark.parametrize("fraction", [0.02, 0.3])
def test_the_share_comes_close(fraction):
    """Within four standard deviations, for sources that differ in a digit only."""
    many = [Pair(f"source {i}", "target") for i in range(20_011)]
    _, valid = split_validation(many, fraction, seed=5)
    deviation = (fraction * (1 - fraction) * len(many)) ** 0.5
    assert abs(len(valid) - fraction * len(many)) < 4 * deviation


def test_neither_order_nor_the_rest_of_the_corpus_matters():
    _, valid = split_validation(PAIRS, 0.2, seed=1)
    _, turned = split_validation(PAIRS[::-1], 0.2, seed=1)
    _, half = split_validation(PAIRS[:31], 0.2, seed=1)
    assert turned == valid[::-1] and half == [pair for pair in PAIRS[:31] if pair in valid] != []


def test_the_part_is_found_again(tmp_path):
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS))
    config = kt.TrainConfig(train_source=str(table), valid_fraction=0.1, seed=3)
    corpus = text_files.load_corpus(config)
    assert (corpus.train, corpus.valid) == split_validation(PAIRS, 0.1, seed=3)
    assert text_files.load_valid(config) == corpus.valid


def test_rows_are_drawn_alike_in_any_number_of_looks(monkeypatch):
    rows = sample_rows(10_007, 503, seed=1)
    assert len(set(rows.tolist())) == 503 and (np.diff(rows) > 0).all() and rows.max() < 10_007
    monkeypatch.setattr(text_files, "CHUNK", 700)
    assert sample_rows(10_007, 503, seed=1).tolist() == rows.tolist()
    assert sample_rows(10_007, 503, seed=2).tolist() != rows.tolist()
    for count in (0, 4, 5):  # few rows are all taken
        assert sample_rows(count, 5, seed=1).tolist() == list(range(count))
    # Of each tenth about as many: within five standard deviations of 100.
    counts = np.histogram(sample_rows(100_000, 1000, seed=7), bins=10, range=(0, 100_000))[0]
    assert (np.abs(counts - 100) < 50).all()


def test_hashes_are_those_of_splitmix64():
    """Others would validate runs of before by what they were trained on; of 0, as published."""
    bits, state = (1 << 64) - 1, 1 + 0x9E3779B97F4A7C15
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & bits
    state = (state ^ state >> 27) * 0x94D049BB133111EB & bits
    expected = [0xE220A8397B1DCDAF, state ^ state >> 31]
    assert text_files.hash_numbers(np.arange(2, dtype=np.uint64), 0).tolist() == expected
