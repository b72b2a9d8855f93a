"""Lines as they come in: every one once, soon, and never many of them in memory."""

import itertools
import queue
import tracemalloc

import pytest

from keras_transformer.translation import incoming_lines
from keras_transformer.translation.incoming_lines import IncomingLines
from keras_transformer.translation.translate_stream import translate_stream


def reading(blocks):
    """What hands out these blocks of bytes, one a call."""
    blocks = iter(blocks)
    return lambda size: next(blocks, b"")


def all_of(lines, most):
    windows = list(iter(lambda: lines.take(most), []))
    assert all(len(window) <= most for window in windows)
    return list(itertools.chain(*windows))


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a", b"a\n\nb\r\n c \n", b"\xef\xbb\xbfa\r\nb", b"\r\n\xff"]
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_of_any_blocks(text, size):
    blocks = [text[i : i + size] for i in range(0, len(text), size)]
    expected = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\n")
    if not expected[-1]:
        expected.pop()
    for most in (1, 2, 50):
        assert all_of(IncomingLines(reading(blocks)), most) == expected


def test_what_has_come_is_handed_out_while_more_may_come():
    pipe = queue.Queue()
    lines = IncomingLines(lambda size: pipe.get(timeout=60))  # instead of b"", an error ends it
    pipe.put(b"one\ntwo\nthr")
    assert lines.take(100) == [b"one", b"two"]
    assert not lines.ended
    pipe.put(b"ee\n")
    assert lines.take(100) == [b"three"] and lines.bytes_taken == 14
    pipe.put(b"four")
    pipe.put(b"")
    assert lines.take(100) == [b"four"] and lines.ended and lines.take(100) == []


def test_skipped_lines():
    lines = IncomingLines(reading([b"a\nb\n", b"c\nd\ne\n"]))
    assert lines.skip(3) == 3 and lines.take(1) == [b"d"] and lines.skip(0) == 0
    assert lines.skip(2) == 1 and lines.ended


def test_few_bytes_together(monkeypatch):
    monkeypatch.setattr(incoming_lines, "LARGEST", 100)
    lines = IncomingLines(reading([b"x" * 40 + b"\n"] * 7 + [b"y" * 500 + b"\n"] * 2))
    windows = list(iter(lambda: lines.take(50), []))
    assert [len(window) for window in windows] == [3, 3, 2, 1]


def test_what_cannot_be_read_is_one_sentence():
    def read(size):
        raise IsADirectoryError(21, "Is a directory")

    with pytest.raises(ValueError, match="cannot be read: .*Is a directory"):
        IncomingLines(read).take(5)


def test_memory_is_bounded():
    """Half a million lines, 100 MB, pass through; a few windows are in memory."""
    block = (b"a line of text, " * 12 + b"\n") * 300
    count = 100_000_000 // len(block)
    lines = IncomingLines(reading(itertools.repeat(block, count)))

    def translate(texts, prefixes, first):
        return [text.decode().upper() for text in texts]

    tracemalloc.start()
    try:
        found = sum(map(len, translate_stream(translate, lines)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 300 * count > 500_000
    assert peak < 16_000_000
