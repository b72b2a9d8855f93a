"""Word vectors in files: each format is read as what it is, what is wrong said in a sentence."""

import gzip
import struct
import sys

import numpy as np
import pytest

from keras_transformer.tokenizers.word_vectors import check_vectors, read_vectors
from tests.support import child_process

WORDS = ["the", ",", ". . .", "at name@domain.com", "fox\u00a0s", "Zwölf", "1995", "</s>", "\x85"]
TABLE = np.random.default_rng(4).normal(0, 0.3, (9, 5)).astype("float32")
ASKED = {"the", "Zwölf", "fox\u00a0s", "1995", "missing", "\x85"}


def text(header=False, end="\n"):
    lines = [f"9 5{end}"] * header
    for word, row in zip(WORDS, TABLE, strict=True):
        lines.append(f"{word} {' '.join(map(repr, row.tolist()))}{end}")
    return "".join(lines).encode()


def binary(newlines):
    rows = [
        word.replace(" ", "_").encode() + b" " + row.tobytes() + b"\n" * newlines
        for word, row in zip(WORDS, TABLE, strict=True)
    ]
    return b"9 5\n" + b"".join(rows)


FORMATS = {
    "glove": text(),
    "word2vec": text(header=True),
    "fasttext": text(header=True, end=" \n"),
    "windows": text(header=True, end="\r\n"),
    "binary": binary(newlines=True),  # as word2vec writes it
    "binary of gensim": binary(newlines=False),
}


def message_of(path, *arguments):
    with pytest.raises(ValueError) as caught:
        read_vectors(path, *arguments)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path)), message
    return message.removeprefix(str(path))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_told_apart(name, packed, tmp_path):
    path = tmp_path / "vectors"
    path.write_bytes(gzip.compress(FORMATS[name]) if packed else FORMATS[name])
    found = read_vectors(path, {word.encode() for word in ASKED})
    rows = [i for i, word in enumerate(WORDS) if word in ASKED]
    assert found.width == 5 and found.rows.dtype == np.float32
    assert [word.decode() for word in found.words] == [WORDS[i] for i in rows]
    np.testing.assert_array_equal(found.rows, TABLE[rows])
    check_vectors(path, 5)
    assert message_of(path, (), 6).startswith(" has vectors of 5 numbers, but the embedding is 6 ")
    with pytest.raises(ValueError, match="has vectors of 5 numbers"):
        check_vectors(path, 6)


def test_first_word_may_have_a_space_and_one_may_be_there_twice(tmp_path):
    path = tmp_path / "vectors"
    path.write_bytes(b". . . 1.5 2.5 -1e-3\nthe 1 2 3\nthe 4 5 6\n\n\n")
    found = read_vectors(path, {b"the", b"."})
    assert found.words == [b"the"] and found.rows.tolist() == [[1, 2, 3]]
    assert read_vectors(path, {b"fox"}).rows.shape == (0, 3)
    path.write_bytes(b"the 1 2 3\nthe\tfox 4 5 6\n")  # a space, no other, ends a word
    assert read_vectors(path, {b"the\tfox"}).rows.tolist() == [[4, 5, 6]]


BAD = {
    "missing": (None, " cannot be read: No such file or directory."),
    "empty": (b"", " is not a file of word vectors: its first line must be"),
    "prose": (b"the quick brown fox\njumps over\n", "must be a word and its vector, or"),
    "one line without an end": (b"the 1.0 2.0", "is not a file of word vectors"),
    "a .npy": (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}\n" + b"\0" * 99, "is not a file of word"),
    "ragged": (b"the 1.5 2.5\nfox 1.5\n", ": line 2 has 1 number, expected 2; the file is"),
    "too wide": (b"the 1.5 2.5\nfox 1.5 2.5 3.5\n", ": line 2 has 3 numbers, expected 2."),
    "a hole": (b"the 1.5 2.5\n\nfox 1.5 2.5\n", ": line 2 has 0 numbers, expected 2"),
    "no number": (b"the 1.5 2.5\nfox 1.5 x\n", ": line 2 has values that are not numbers."),
    "not finite": (b"the 1.5 2.5\nfox nan 1.5\n", ": the vector of 'fox' is not finite."),
    "too large": (b"the 1.5 2.5\nfox 1e99 1.5\n", ": the vector of 'fox' is not finite."),
    "infinite": (b"1 2\nfox " + struct.pack("<2f", 1, np.inf), "vector of 'fox' is not finite."),
    "truncated": (b"3 2\nthe 1.5 2.5\nfox 1.5 2.5\n", "expected 3 vectors according to its"),
    "truncated binary": (binary(True)[:-9], "expected 9 vectors according to its first line"),
    "header alone": (b"9 5\n", "expected 9 vectors according to its first line"),
    "no words": (b"9 5\n" + b"\x01" * 9999, ": expected a word before vector 1, received none"),
    "garbage": (b"\x1f\x8b" + b"garbage" * 9, " cannot be decompressed ("),
    "packed prose": (gzip.compress(b"the quick\n"), "is not a file of word vectors"),
    "half a gzip": (gzip.compress(FORMATS["glove"] * 50)[:-60], "truncated; download it again."),
    "fastText's model": (struct.pack("<2i", 793712314, 12) + b"\0" * 99, " is a fastText model ("),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_vectors(name, tmp_path):
    content, sentence = BAD[name]
    path = tmp_path / "vectors"
    if content is not None:
        path.write_bytes(content)
    assert sentence in message_of(path, {b"the", b"fox"})


MEASURE = """
import os, sys
os.environ["KERAS_TRANSFORMER_LIGHT"] = "1"
from keras_transformer.tokenizers.word_vectors import read_vectors

from tests.support import child_process
wanted = {b"w%d" % k for k in range(0, int(sys.argv[2]), int(sys.argv[2]) // 5000)}
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
before = peak()
found = read_vectors(sys.argv[1], wanted)
assert len(found.words) == len(wanted) and found.rows.shape[1] == 300
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read off /proc")
def test_only_wanted_rows_are_in_memory(tmp_path):
    """100,000 lines of 300 numbers, 240 MB, of which 5,000 are wanted."""
    numbers = b" ".join(b"%.4f" % x for x in np.random.default_rng(1).normal(0, 0.3, 300))
    path = tmp_path / "vectors"
    with open(path, "wb", 1 << 20) as file:
        file.writelines(b"w%d %b\n" % (k, numbers) for k in range(100_000))
    command = [sys.executable, "-c", MEASURE, path, "100000"]
    done = child_process.run(command, check=True, capture_output=True)
    assert 0 < float(done.stdout) < 100
    path.unlink()
