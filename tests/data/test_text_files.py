"""Parallel text files: what is read from them, and the sentence that tells what is wrong."""

import gzip
import os
import threading

import pytest

from keras_transformer.data.pairs import Pair
from keras_transformer.data.text_files import read_lines, read_pairs

SOURCE = ["a cat", "", "  zwölf Boxkämpfer ", "東京 🙂"]
TARGET = ["eine Katze", "leer", "", "\u202eрыба\u0301"]


@pytest.fixture
def write(tmp_path):
    """Writes a file, gzipped when its name says so, and returns its path."""

    def written(name, content):
        content = content.encode("utf-8") if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return written


def message_of(function, *arguments):
    """What the ValueError says: one line."""
    with pytest.raises(ValueError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("extension", ["txt", "de", "txt.gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [True, False], ids=["closed", "open"])
def test_two_files(write, extension, newline, last):
    source, target = (
        write(f"{name}.{extension}", newline.join(lines) + newline * last)
        for name, lines in (("source", SOURCE), ("target", TARGET))
    )
    pairs = read_pairs(source, target)
    assert pairs == [Pair(*row) for row in zip(SOURCE, TARGET, strict=True)]
    assert pairs[0].source == "a cat" and pairs[0].target == "eine Katze" and pairs[0].group == ""
    assert read_pairs(str(source), str(target)) == pairs


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_table(write, name, newline):
    rows = newline.join("\t".join(row) for row in zip(SOURCE, TARGET, strict=True))
    expected = [Pair(*row) for row in zip(SOURCE, TARGET, strict=True)]
    path = write(name, rows)
    assert read_pairs(path) == expected
    assert read_pairs(str(path)) == expected


def test_only_a_newline_ends_a_line(write):
    # What str.splitlines takes for line ends besides, a lone CR and a NUL.
    line = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj\x00k"
    path = write("source.txt", f"{line}\nnext\n")
    assert read_lines(path) == [line, "next"]
    for content, lines in {"\n": [""], "\n\n": ["", ""], "a\n\n": ["a", ""], "\r\n": [""]}.items():
        assert read_lines(write("file.txt", content)) == lines
    assert read_pairs(path, path) == [(line, line, ""), ("next", "next", "")]


@pytest.mark.parametrize("source_is_longer", [True, False])
def test_unequal_line_counts(write, source_is_longer):
    longer, shorter = write("longer", "1\n2\n3\n4\n5\n"), write("shorter", "1\n2\n3")
    paths = (longer, shorter) if source_is_longer else (shorter, longer)
    message = message_of(read_pairs, *paths)
    assert f"{longer} has 5 lines" in message or f"{longer} has 5:" in message
    assert f"{shorter} has 3 lines" in message or f"{shorter} has 3:" in message
    assert f"{shorter} ends before line 4 of {longer}" in message


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("extension", ["txt", "gz"])
def test_files_that_cannot_be_read(write, tmp_path, side, extension):
    good, bad = write("good.txt", "a\n"), tmp_path / f"bad.{extension}"

    def message():
        text = message_of(read_pairs, *((bad, good) if side == 0 else (good, bad)))
        assert str(bad) in text
        return text

    assert "No file matches" in message()
    bad.mkdir()
    assert "Is a directory" in message()
    bad.rmdir()
    bad.write_bytes(gzip.compress(b"") if extension == "gz" else b"")
    assert "is empty" in message()


def test_gzipped_files_that_are_damaged(tmp_path):
    whole, path = gzip.compress(b"hello world\n" * 1000), tmp_path / "file.gz"
    for damaged, reason in (
        (b"hello world\n", "Not a gzipped file"),
        (whole[:-12], "ended before the end-of-stream marker"),
        (whole[:20] + b"\xff" * 10 + whole[30:], "Error -3 while decompressing"),
        (whole[:-8] + b"\x00" * 8, "CRC check failed"),
    ):
        path.write_bytes(damaged)
        message = message_of(read_lines, path)
        assert message.startswith(f"{path} cannot be read (") and reason in message
        assert message.endswith("): it is truncated or corrupted.")


@pytest.mark.parametrize("extension", ["txt", "en", "tsv"])
def test_gzipped_files_of_any_name(write, extension):
    content = gzip.compress("a\tä\nb\tö\n".encode())
    path, plain = write(f"file.{extension}", content), write("plain.tsv", "a\tä\nb\tö\n")
    assert read_lines(path) == read_lines(plain)
    if extension == "tsv":
        assert read_pairs(path) == read_pairs(plain)


def test_text_from_a_pipe(tmp_path):
    """As the shell's <(zcat file) gives it, gzipped or not."""
    for content in (b"a\nb\n", gzip.compress(b"a\nb\n")):
        os.mkfifo(tmp_path / "pipe")
        threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,)).start()
        assert read_lines(tmp_path / "pipe") == ["a", "b"]
        (tmp_path / "pipe").unlink()


@pytest.mark.parametrize("name", ["file.txt", "file.gz", "file.tsv"])
@pytest.mark.parametrize(
    "row, byte",
    [
        (b"\xff", 1),
        (b"ab\xff\tc", 3),
        ("ä".encode("latin-1"), 1),
        ("zwölf".encode()[:3], 3),  # cut in the middle of a character
        (b"x\xed\xa0\x80", 2),  # a surrogate
    ],
    ids=ascii,
)
def test_invalid_utf8(write, name, row, byte):
    path = write(name, b"a\tb\nc\td\n" + row + b"\ne\tf\n")
    read = read_pairs if name.endswith("tsv") else read_lines
    message = message_of(read, path)
    assert message.startswith(f"{path} line 3 is not valid UTF-8 at byte {byte}:")


@pytest.mark.parametrize(
    "row, found", [("alone", "1 column"), ("", "1 column"), ("a\tb\tc", "3 columns")]
)
def test_table_with_another_number_of_columns(write, row, found):
    path = write("pairs.tsv", f"a\tb\n{row}\nc\td\n")
    assert message_of(read_pairs, path).startswith(f"{path} line 2 has {found}, expected 2.")


@pytest.mark.parametrize("table", ["a.tsv", "a.tsv.gz", "a.TSV"])
def test_a_table_needs_no_target(write, table):
    table, text = write(table, "a\tb\n"), write("text", "a\n")
    message = f"{table} has both source and target: omit --train-target"
    for other in (text, table):
        assert message_of(read_pairs, table, other, "--train-target") == f"{message}."
    assert message_of(read_pairs, text, table, "--train-target") == (
        f"{message}, and pass this file as the source."
    )
    assert read_pairs(table) == [("a", "b", "")]


@pytest.mark.parametrize("name", ["source.txt", "source.gz", "tsv"])
def test_source_without_target(write, name):
    path = write(name, "a\tb\n")
    message = message_of(read_pairs, path)
    assert (
        message.startswith("The target file is missing: ")
        and str(path) in message
        and ".tsv" in message
    )


# Several files, and what is no text.


@pytest.mark.parametrize("extension", ["txt", "txt.gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_byte_order_mark_is_taken_off(write, extension, newline):
    """At the beginning of a file, once; elsewhere it is a character like any other."""
    text = f"\ufeff\ufeffa{newline}\ufeffb{newline}"
    path = write(f"file.{extension}", text)
    assert read_lines(path) == ["\ufeffa", "\ufeffb"]
    assert message_of(read_lines, write(f"mark.{extension}", "\ufeff")).endswith("per line.")


def test_patterns_stand_for_files_in_the_order_of_their_names(write, tmp_path):
    for number in (2, 1, 3):
        write(f"part-{number}.en.gz", f"\ufeffa{number}\r\nb{number}")
        write(f"part-{number}.de", f"\ufeffx{number}\ny{number}\n")
        write(f"part-{number}.tsv", f"s{number}\tt{number}\n")
    pairs = read_pairs(tmp_path / "part-*.en.gz", tmp_path / "part-*.de")
    assert [pair.source for pair in pairs] == ["a1", "b1", "a2", "b2", "a3", "b3"]
    assert [pair.target for pair in pairs] == ["x1", "y1", "x2", "y2", "x3", "y3"]
    assert [pair.target for pair in read_pairs(tmp_path / "part-?.tsv")] == ["t1", "t2", "t3"]
    odd = write("part-[1].tsv", "odd\tname\n")
    assert read_pairs(odd) == [("odd", "name", "")], "a name that is one is no pattern"


def test_patterns_that_do_not_fit(write, tmp_path):
    none, sources, targets = (tmp_path / f"part-*.{name}" for name in ("fr", "en", "de"))
    for number, lines in ((1, 2), (2, 3)):
        write(f"part-{number}.en", "a\n" * 2)
        write(f"part-{number}.de", "a\n" * lines)
    assert message_of(read_pairs, none, targets) == f"No file matches {none}: check the path."
    one = write("one.de", "a\n" * 5)
    expected = f"{sources} matches 2 files, but {one} matches 1"
    assert message_of(read_pairs, sources, one).startswith(expected)
    expected = f"{one} matches 1 file, but {sources} matches 2"
    assert message_of(read_pairs, one, sources).startswith(expected)
    short, long = tmp_path / "part-2.en", tmp_path / "part-2.de"
    assert message_of(read_pairs, sources, targets).endswith(
        f"{short} has 2 lines and {long} has 3: {short} ends before line 3 of {long}."
    )


def test_lines_longer_than_a_block_and_across_blocks(write, monkeypatch):
    lines = ["", "ä" * 9, "b", "ccc" * 7, "\r", "d"]
    path = write("file.txt", "\n".join(lines))
    for size in (1, 2, 5, 8):
        monkeypatch.setattr("keras_transformer.data.text_files.BLOCK", size)
        assert read_lines(path) == ["", "ä" * 9, "b", "ccc" * 7, "", "d"]
