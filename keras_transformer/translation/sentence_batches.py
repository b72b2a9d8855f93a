"""Sentences: read from a stream, translated in batches of similar length, returned in order."""

import codecs
import collections
import concurrent.futures
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from keras_transformer.kernels import available_cores
from keras_transformer.tokenizers.tokenizer import to_bytes
from keras_transformer.utils import Texts, counted

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

READ_BYTES = 1 << 16  # per read
MAX_BLOCKS = 128  # read ahead
MAX_WINDOW_BYTES = 1 << 23  # of lines that are handed out together
IDLE_SECONDS = 0.2  # without a new line, after which the lines that have arrived are handed out
MAX_WAIT_SECONDS = 1.0  # after the first of them, if lines keep arriving slowly
# Lines of the first window and of the later ones. At the end of each window cores wait for one
# another, and the fewer sentences there are to sort, the less alike they are in a batch: by padded
# tokens on two cores, about 1 % of all of Multi30k's 29,000 lines as one, 4 % at worst, of 6,000
# (not timed).
FIRST_WINDOW = 2048 * max(2, available_cores())
WINDOW = 4 * FIRST_WINDOW


class IncomingLines:
    """Reads lines ahead in a separate thread, and returns several at a time.

    Removes a byte order mark, and carriage returns before newlines. `read` is a function of a
    number of bytes that returns at most as many, as soon as there are any; none at the end.

    Attributes:
        bytes_taken: Number of bytes of the lines that were handed out, line ends included.
        ended: Whether all lines have been handed out and no other will come, as far as is known.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.bytes_taken = 0
        self._lines: collections.deque[bytes] = collections.deque()
        self._blocks: queue.Queue[bytes | Exception | None] = queue.Queue(MAX_BLOCKS)
        self._all_read = False
        threading.Thread(target=self._read_all, args=(read,), daemon=True).start()

    @property
    def ended(self) -> bool:
        if not self._lines and not self._all_read:
            self._wait(IDLE_SECONDS)
        return self._all_read and not self._lines

    def take(self, max_lines: int) -> list[bytes]:
        """Waits for a line; returns those that have arrived then or soon after, none at the end."""
        taken: list[bytes] = []
        size, until = 0, 0.0
        while True:
            while self._lines and len(taken) < max_lines and size < MAX_WINDOW_BYTES:
                taken.append(self._lines.popleft())
                size += len(taken[-1]) + 1
            if self._all_read or len(taken) == max_lines or size >= MAX_WINDOW_BYTES:
                break
            if not taken:
                self._wait(None)
                until = time.monotonic() + MAX_WAIT_SECONDS
            elif not self._wait(max(0.0, min(IDLE_SECONDS, until - time.monotonic()))):
                break
        self.bytes_taken += size
        return taken

    def _wait(self, seconds):
        """Waits for a block; returns whether one has arrived, or the end."""
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
        mark, rest = codecs.BOM_UTF8, []  # the mark is removed from the first block only
        try:
            while block := read(READ_BYTES):
                head, newline, tail = block.rpartition(b"\n")
                if newline:
                    self._blocks.put(b"".join([*rest, head]).removeprefix(mark))
                    mark, rest = b"", []
                rest.append(tail)
            if any(rest):
                self._blocks.put(b"".join(rest).removeprefix(mark))
            self._blocks.put(None)
        except Exception as error:
            self._blocks.put(error)


class Lines(Protocol):
    """`IncomingLines`, or the texts in them."""

    @property
    def ended(self) -> bool: ...

    def take(self, max_lines: int) -> list[bytes]: ...


def translate_stream(
    translate: Callable[..., list[Any]],
    lines: Lines,
    prefixes: Iterator[str | bytes] | None = None,
    first: int = 0,
) -> Iterator[list[Any]]:
    """Translates windows of lines, each sorted by length, in the order they arrive.

    A window is translated when it is full, or when no line has arrived for a moment. Where windows
    end affects speed only: what is sampled for a line depends on its number, from `first`.

    Yields:
        Lists of what `translate` returns for each line.
    """
    number, size = first, FIRST_WINDOW
    while window := lines.take(size):
        own = None
        if prefixes is not None:
            own = list(itertools.islice(prefixes, len(window)))
            if len(own) < len(window):
                raise ValueError(
                    f"Received {counted(number + len(own), 'prefix', 'prefixes')}, but more lines "
                    "to translate: give one for each line, an empty one where there is none."
                )
            if len(window) < size and lines.ended:
                _check_end(prefixes, number + len(window))
        yield translate(window, prefixes=own, first=number)
        number, size = number + len(window), WINDOW
    if prefixes is not None:
        _check_end(prefixes, number)


def _check_end(prefixes, count):
    """Checks that no prefixes are left over."""
    if next(prefixes, None) is not None:
        raise ValueError(
            f"Received {counted(count, 'line')} to translate, but more prefixes: give one for each "
            "line."
        )


def as_bytes(texts: Texts) -> list[bytes]:
    """Texts, strings or byte strings, as a list of byte strings."""
    if isinstance(texts, (str, bytes)):
        raise ValueError("Expected a list of sentences, received one string: put it in a list.")
    rows = [to_bytes(text) for text in texts]
    for row in rows:
        if not isinstance(row, bytes):
            raise ValueError(f"Expected sentences as strings, received {row!r} among them.")
    return rows


def check_count(name: str, texts: Sequence[object], count: int) -> None:
    """Checks that there is a text, called `name` in errors, for each of `count` sources."""
    if len(texts) != count:
        raise ValueError(
            f"Expected a {name} for each source, received {len(texts)} for "
            f"{counted(count, 'source')}."
        )


def in_batches(
    function: Callable[[list[int]], Sequence[T]],
    lengths: "Sequence[int] | np.ndarray",
    batch_size: int,
) -> list[T]:
    """Calls a function for batches of items of similar length; returns results in their order.

    `function` maps the indices of some items to a list of as many results. Several threads call it
    where TensorFlow runs each operation on one core (`threads.configure_threads`); the batches are
    smaller than `batch_size` where cores would be idle.
    """
    from keras_transformer.kernels.tensorflow.machine import inter_op_threads

    at_once = inter_op_threads()
    batches = sorted_batches(lengths, batch_size, at_once)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        run = pool.map if at_once > 1 else map
        return in_order(batches, run(function, batches))


def sorted_batches(
    lengths: "Sequence[int] | np.ndarray", batch_size: int, at_once: int
) -> list[list[int]]:
    """Indices of items in batches of similar length, `at_once` batches or more if possible."""
    batch_size = max(1, min(batch_size, -(-len(lengths) // at_once)))
    # The longest come first, so that at the end no core works for long alone.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def in_order(batches: Iterable[Sequence[int]], results: Iterable[Sequence[T]]) -> list[T]:
    """The results of all items, in the order of their indices, from those of their batches."""
    by_index = {
        index: result
        for batch, results_of_batch in zip(batches, results, strict=True)
        for index, result in zip(batch, results_of_batch, strict=True)
    }
    return [by_index[index] for index in sorted(by_index)]
