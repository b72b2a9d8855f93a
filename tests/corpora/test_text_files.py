"""Parallel text files: what is read from them, and the sentence that tells what is wrong."""

import gzip

import pytest

from keras_transformer.corpora.pair import Pair
from keras_transformer.corpora.text_files import read_lines, read_pairs

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


def test_files_may_be_of_different_kinds(write):
    source, target = write("source.gz", "a\nb\n"), write("target.txt", "x\r\ny")
    assert read_pairs(source, target) == [("a", "x", ""), ("b", "y", "")]


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
    assert read_pairs(path, path) == [(line, line, ""), ("next", "next", "")]


@pytest.mark.parametrize(
    "content, lines",
    [("\n", [""]), ("\n\n", ["", ""]), ("a\n\n", ["a", ""]), ("a", ["a"]), ("\r\n", [""])],
    ids=ascii,
)
def test_empty_lines_are_lines(write, content, lines):
    assert read_lines(write("file.txt", content)) == lines


@pytest.mark.parametrize("source_is_longer", [True, False])
def test_unequal_line_counts(write, source_is_longer):
    longer, shorter = write("longer", "1\n2\n3\n4\n5\n"), write("shorter", "1\n2\n3")
    paths = (longer, shorter) if source_is_longer else (shorter, longer)
    message = message_of(read_pairs, *paths)
    assert f"{longer} has 5 lines" in message or f"{longer} has 5:" in message
    assert f"{shorter} has 3 lines" in message or f"{shorter} has 3:" in message
    assert f"{shorter} ends where {longer} still has line 4" in message


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("extension", ["txt", "gz"])
def test_files_that_cannot_be_read(write, tmp_path, side, extension):
    good, bad = write("good.txt", "a\n"), tmp_path / f"bad.{extension}"

    def message():
        text = message_of(read_pairs, *((bad, good) if side == 0 else (good, bad)))
        assert str(bad) in text
        return text

    assert "No such file or directory" in message()
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


@pytest.mark.parametrize("row, count", [("alone", 1), ("", 1), ("a\tb\tc", 3), ("a\tb\t", 3)])
def test_table_with_another_number_of_columns(write, row, count):
    path = write("pairs.tsv", f"a\tb\n{row}\nc\td\n")
    assert message_of(read_pairs, path).startswith(f"{path} line 2 has {count} columns, expected 2")


@pytest.mark.parametrize("name", ["source.txt", "source.gz", "tsv"])
def test_source_without_target(write, name):
    path = write(name, "a\tb\n")
    message = message_of(read_pairs, path)
    assert message.startswith(f"{path} has no target file") and ".tsv" in message
