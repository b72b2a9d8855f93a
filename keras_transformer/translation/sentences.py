"""Sentences: read from a stream, translated in batches of similar length; and what is found.

No TensorFlow. Shapes: S source length, T target length, N layers, H heads.
"""

import codecs
import collections
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from keras_transformer.kernels import available_cores
from keras_transformer.presets import SearchConfig
from keras_transformer.tokenizers.tokenizer import to_bytes
from keras_transformer.utils import Texts, counted

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

# The log-probability of a missing hypothesis: JSON has no -inf.
LEAST_LOG_PROB = -1e9
KINDS = ("cross", "encoder", "decoder")  # of attention
READ_BYTES = 1 << 16  # per read
NOT_UTF8 = b"\x1f\x8b", codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE  # first bytes: gzip, UTF-16
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


class Hypothesis(NamedTuple):
    """One of several translations of a text.

    Attributes:
        text: The translation.
        log_prob: Natural logarithm of its probability, END included, not normalised by length.
        score: What a beam ranks by, log_prob / lp(length) with END counted; see `beam_search`.
            For greedy search and sampling, `log_prob`.
    """

    text: str
    log_prob: float
    score: float


class TokenStep(NamedTuple):
    """One step of a search: the token that was chosen, and the most probable ones.

    Attributes:
        token: The piece.
        log_prob: Its natural-log probability given the tokens before it, as the model computes it:
            without the temperature, top-k and top-p of a sampling search.
        best: Pairs (piece, log_prob), the most probable first.
    """

    token: str
    log_prob: float
    best: list[tuple[str, float]]


class AttentionMaps(NamedTuple):
    """The attention weights of one pair of texts, and the tokens on both sides.

    Attributes:
        source_tokens: S strings, END included: the encoder's input.
        target_tokens: T strings, END included: the output. The decoder's input is START and all
            but the last of them.
        scores: {"encoder": float32 `(N, H, S, S)`, "decoder": `(N, H, T, T)`, "cross":
            `(N, H, T, S)`}: rows are queries, and each sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    scores: "dict[str, np.ndarray]"

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """The tokens that label the keys and the queries of one of `KINDS`.

        In the decoder's self-attention these are its input tokens; in cross-attention, a query has
        the name of the token that it predicts.
        """
        if kind == "encoder":
            return self.source_tokens, self.source_tokens
        if kind == "cross":
            return self.source_tokens, self.target_tokens
        inputs = ["<s>", *self.target_tokens[:-1]]
        return inputs, inputs


def check_n_best(n_best: int | None, search: SearchConfig) -> int:
    """Returns how many translations to find for each text: `n_best`, or the beam size if None.

    Sampling can return any number of samples.
    """
    if n_best is None:
        return search.beam_size
    if n_best < 1 or n_best > search.beam_size and not search.sample:
        raise ValueError(
            f"n_best must be from 1 to the beam size, {search.beam_size}, unless you sample, "
            f"received {n_best}."
        )
    return n_best


def sample_seeds(search: SearchConfig, first: int, count: int, draws: int) -> list[int]:
    """The seeds, less than 2^63, of all samples of `count` texts, whose numbers start at `first`.

    Sample `k` of a seed is the first sample of that seed plus `k`.
    """
    return [
        ((search.seed + draw) % 2**31 << 32) + int(number)
        for number in range(first, first + count)
        for draw in range(draws)
    ]


class IncomingLines:
    """Reads lines ahead in a separate thread, and returns several at a time.

    Removes a byte order mark, and carriage returns before newlines. `read` is a function of a
    number of bytes that returns at most as many, as soon as there are any; none at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._lines: collections.deque[bytes] = collections.deque()
        self._blocks: queue.Queue[bytes | Exception | None] = queue.Queue(MAX_BLOCKS)
        self._all_read = False
        threading.Thread(target=self._read_all, args=(read,), daemon=True).start()

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
                if mark and block.startswith(NOT_UTF8):
                    raise ValueError("they are gzipped or UTF-16: unpack or convert them to UTF-8")
                head, newline, tail = block.rpartition(b"\n")
                if newline:
                    self._blocks.put(b"".join([*rest, head]).removeprefix(mark))
                    mark, rest = b"", []
                rest.append(tail)
            if last := b"".join(rest).removeprefix(mark):
                self._blocks.put(last)
            self._blocks.put(None)
        except Exception as error:
            self._blocks.put(error)


def translate_stream(
    translate: Callable[..., list[Any]],
    take: Callable[[int], list[bytes]],
    prefixes: Iterator[str | bytes] | None = None,
    first: int = 0,
) -> Iterator[list[Any]]:
    """Translates windows of lines, each sorted by length, in the order they arrive.

    `take` is `IncomingLines.take`, or a function that returns the texts in those lines. A window is
    translated when it is full, or when no line has arrived for a moment. Where windows end affects
    speed only: what is sampled for a line depends on its number, from `first`.

    Yields:
        Lists of what `translate` returns for each line.
    """
    number, size = first, FIRST_WINDOW
    while window := take(size):
        own = None
        if prefixes is not None:
            own = list(itertools.islice(prefixes, len(window)))
        yield translate(window, prefixes=own, first=number)
        number, size = number + len(window), WINDOW
    if prefixes is not None and next(prefixes, None) is not None:
        raise ValueError(f"Received {counted(number, 'line')} to translate, but more prefixes.")


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
        raise ValueError(f"Expected a {name} for each source, received {len(texts)} for {count}.")


def in_batches(
    run: Callable[[list[list[int]]], Iterable[Sequence[T]]],
    lengths: "Sequence[int] | np.ndarray",
    batch_size: int,
    at_once: int,
) -> list[T]:
    """Returns the results of items that are computed in batches of similar length, in their order.

    `run` maps batches, lists of indices of items, to lists of as many results. It runs `at_once`
    batches at the same time: they are smaller than `batch_size` where cores would be idle.
    """
    batch_size = max(1, min(batch_size, -(-len(lengths) // at_once)))
    # The longest come first, so that at the end no core works for long alone.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    results = zip(order, itertools.chain.from_iterable(run(batches)), strict=True)
    return [result for _, result in sorted(results, key=lambda pair: pair[0])]
