"""Text to the ids that are served, on several cores, in order."""

import collections
import contextlib
import os
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from keras_transformer.corpora.parallel_text import Block
from keras_transformer.data.prepared.encoder import EncodedSide, Encoder
from keras_transformer.data.prepared.encoding_process import EncodingProcess

AHEAD = 2  # blocks that each process has been given, at most: one to work at, one to go on with

Encode: TypeAlias = Callable[[Block], tuple[EncodedSide, EncodedSide]]


def encode_blocks(
    blocks: Iterable[Block], models: tuple[bytes, bytes], processes: int | None = None
) -> Iterator[tuple[Block, tuple[EncodedSide, EncodedSide]]]:
    """Tokenizes blocks of pairs; a few of them are in memory at a time.

    Args:
        blocks: Pairs.
        models: Serialised SentencePiece models of the source and of the target.
        processes: How many work at it; with 1, none but this one. One for each core by default.

    Yields:
        Blocks and what they are as ids, in order.

    Raises:
        ValueError: If one of the processes ends.
    """
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        encoder = Encoder(models)
        yield from ((block, encoder(block)) for block in blocks)
        return
    with contextlib.ExitStack() as stack:
        free: queue.SimpleQueue[EncodingProcess] = queue.SimpleQueue()
        for _ in range(processes):
            process = EncodingProcess(models)
            stack.callback(process.close)
            free.put(process)
        threads = ThreadPoolExecutor(processes)
        stack.callback(threads.shutdown, cancel_futures=True)

        def encode(block):
            process = free.get()
            try:
                return process(block)
            finally:
                free.put(process)

        yield from _in_order(blocks, lambda block: threads.submit(encode, block), processes * AHEAD)


def _in_order(blocks, submit, most):
    """Submits blocks ahead of their turn, but not far."""
    waiting: collections.deque[tuple[Block, Future]] = collections.deque()
    for block in blocks:
        if len(waiting) == most:
            first, future = waiting.popleft()
            yield first, future.result()
        waiting.append((block, submit(block)))
    for first, future in waiting:
        yield first, future.result()
