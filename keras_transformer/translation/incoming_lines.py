"""Lines as they come in, fast or slowly, however many."""

import codecs
import collections
import queue
import threading
import time
from collections.abc import Callable

BLOCK = 1 << 16  # bytes read at once
AHEAD = 64  # blocks that are read ahead
LARGEST = 1 << 22  # bytes of lines that are handed out together
IDLE = 0.2  # seconds without a line after which those that are there are handed out
LONGEST = 1.0  # seconds after the first of them, if lines keep coming slowly


class IncomingLines:
    """Reads lines ahead in a thread of its own, and hands out several at a time.

    A byte order mark and carriage returns before newlines are taken off.

    Args:
        read: Function of a number of bytes that returns some, so many at most, as soon as there
            are any; none at the end.

    Attributes:
        bytes_taken: How many bytes the lines had that were handed out, their ends counted.
        ended: Whether all lines have been handed out and no other will come, as far as is known.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.bytes_taken = 0
        self._lines: collections.deque[bytes] = collections.deque()
        self._blocks: queue.Queue[bytes | Exception | None] = queue.Queue(AHEAD)
        self._all_read = False
        threading.Thread(target=self._read_all, args=(read,), daemon=True).start()

    @property
    def ended(self) -> bool:
        if not self._lines and not self._all_read:
            self._wait(IDLE)
        return self._all_read and not self._lines

    def take(self, most: int) -> list[bytes]:
        """Waits for a line, and takes those that have come by then or come soon.

        Args:
            most: How many lines to take at most.

        Returns:
            List of lines without their ends; empty at the end.

        Raises:
            ValueError: If they cannot be read.
        """
        taken: list[bytes] = []
        size, until = 0, 0.0
        while True:
            while self._lines and len(taken) < most and size < LARGEST:
                taken.append(self._lines.popleft())
                size += len(taken[-1]) + 1
            if self._all_read or len(taken) == most or size >= LARGEST:
                break
            if not taken:
                self._wait(None)
                until = time.monotonic() + LONGEST
            elif not self._wait(max(0.0, min(IDLE, until - time.monotonic()))):
                break
        self.bytes_taken += size
        return taken

    def skip(self, count: int) -> int:
        """Passes over so many lines, or as many as there are; returns how many."""
        left = count
        while left and (taken := self.take(min(left, 1 << 12))):
            left -= len(taken)
        return count - left

    def _wait(self, seconds):
        """Waits for a block; tells whether one has come, or the end."""
        try:
            block = self._blocks.get(timeout=seconds)
        except queue.Empty:
            return False
        if isinstance(block, Exception):
            raise ValueError(f"The lines cannot be read: {block}.") from block
        if block is None:
            self._all_read = True
        else:
            self._lines.extend(line.removesuffix(b"\r") for line in block.split(b"\n"))
        return True

    def _read_all(self, read):
        """Puts whole lines into the queue, without the last one's end; then None or an error."""
        rest, first = [], True
        try:
            while block := read(BLOCK):
                head, newline, tail = block.rpartition(b"\n")
                if newline:
                    self._blocks.put(_text([*rest, head], first))
                    rest, first = [], False
                rest.append(tail)
            if any(rest):
                self._blocks.put(_text(rest, first))
            self._blocks.put(None)
        except Exception as error:
            self._blocks.put(error)


def _text(parts, first):
    """One text of its parts; the first of all without a byte order mark."""
    text = b"".join(parts)
    return text.removeprefix(codecs.BOM_UTF8) if first else text
