"""Tokenizes text on several cores, in order, to the same ids as when serving.

TensorFlow is loaded only for lines that SentencePiece may segment differently.
"""

import collections
import contextlib
import dataclasses
import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import sentencepiece

from keras_transformer import LIGHT
from keras_transformer.data.text_files import Block
from keras_transformer.tokenizers.saved import SUBWORD, file_extension, open_model
from keras_transformer.tokenizers.ties import Ties
from keras_transformer.tokenizers.vocabularies import count_ids, deserialize_pieces

if TYPE_CHECKING:
    from keras_transformer.tokenizers.saved import Saved

MAX_QUEUED = 2  # blocks per process: one in progress, one waiting
MAX_EXAMPLES = 3  # differing lines to report

# Not multiprocessing, which would run the user's script again in each process.
PROGRAM = """import sys
sys.path[:] = {path!r}
from keras_transformer.data.prepared.encoding import run_encoder
run_encoder()
"""


@dataclasses.dataclass
class EncodedSide:
    """One side of some pairs as ids.

    Attributes:
        ids: One sentence after the other, `(I,)` of the type that the corpus is written in.
        lengths: Number of ids of each sentence, `(N,)` int64.
        uncertain: Numbers of the sentences that the served operation may segment differently,
            ascending.
    """

    ids: np.ndarray
    lengths: np.ndarray
    uncertain: np.ndarray


class Encoder:
    """Tokenizes blocks of pairs with the sentencepiece package.

    With a WordPiece vocabulary, for which no package matches the served operation, every line is
    uncertain, and has no ids.

    Args:
        models: Two serialized vocabularies, of the source and of the target.

    Attributes:
        dtype: The smallest type that holds the ids of both.
    """

    def __init__(self, models: tuple[bytes, bytes]) -> None:
        self._processors = [
            sentencepiece.SentencePieceProcessor(model_proto=model)
            if file_extension(model) == SUBWORD
            else None
            for model in models
        ]
        self._ties = [processor and Ties(processor) for processor in self._processors]
        sizes = [
            processor.vocab_size() if processor else count_ids(deserialize_pieces(model)[0])
            for processor, model in zip(self._processors, models, strict=True)
        ]
        self.dtype = np.min_scalar_type(max(sizes) - 1)

    def __call__(self, block: Block) -> tuple[EncodedSide, EncodedSide]:
        source, target = (self._encode_side(side, lines) for side, lines in enumerate(block))
        return source, target

    def _encode_side(self, side, lines):
        if self._processors[side] is None:
            none = np.zeros(len(lines), np.int64)
            return EncodedSide(np.zeros(0, self.dtype), none, np.arange(len(lines)))
        rows = self._processors[side].encode(lines, num_threads=1)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        uncertain = self._ties[side].find(ids, lengths)
        return EncodedSide(ids.astype(self.dtype), lengths, uncertain)


class ServedIds:
    """Tokenizes uncertain lines with the served operation, and counts them.

    TensorFlow is loaded for the first such line. All lines of a side with a WordPiece vocabulary
    are tokenized here, and not counted.

    Args:
        models: Serialized vocabularies of the source and of the target.
        counts: The counts to continue with, when a preparation is resumed.

    Attributes:
        counts: Dict of `uncertain`, the number of such lines; `differing`, how many of them the
            operation segments differently; and `such_as`, the first few of the latter.
    """

    def __init__(self, models: tuple[bytes, bytes], counts: dict[str, Any] | None = None) -> None:
        self._models = models
        self._tokenizers: dict[int, Saved] = {}
        self.counts = counts or {"uncertain": 0, "differing": 0, "such_as": []}

    def correct(self, side: int, lines: list[bytes], encoded: EncodedSide) -> EncodedSide:
        """Replaces the ids of uncertain lines.

        Args:
            side: 0, the source, or 1, the target.
            lines: Its text.
            encoded: The result of an `Encoder`.

        Returns:
            `EncodedSide` without uncertain lines.
        """
        rows = encoded.uncertain.tolist()
        if not rows:
            return encoded
        if side not in self._tokenizers:
            self._tokenizers[side] = open_model(self._models[side])
        served = self._tokenizers[side]([lines[row] for row in rows])
        served_ids, splits = served.flat_values.numpy(), served.row_splits.numpy()
        if file_extension(self._models[side]) != SUBWORD:
            ids = served_ids.astype(encoded.ids.dtype)
            return EncodedSide(ids, np.diff(splits), encoded.uncertain[:0])
        sentences = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
        for row, ids in zip(rows, np.split(served_ids, splits[1:-1]), strict=True):
            if not np.array_equal(ids, sentences[row]):
                self.counts["differing"] += 1
                if len(self.counts["such_as"]) < MAX_EXAMPLES:
                    self.counts["such_as"].append(lines[row].decode())
            sentences[row] = ids.astype(encoded.ids.dtype)
        self.counts["uncertain"] += len(rows)
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        return EncodedSide(np.concatenate(sentences), lengths, encoded.uncertain[:0])


def encode_blocks(
    blocks: Iterable[Block], models: tuple[bytes, bytes], processes: int | None = None
) -> Iterator[tuple[Block, tuple[EncodedSide, EncodedSide]]]:
    """Tokenizes blocks of pairs, of which only a few are in memory at a time.

    Args:
        blocks: Pairs.
        models: Serialized vocabularies of the source and of the target.
        processes: Number of processes; 1 uses this one only. By default one per core.

    Yields:
        Blocks and their ids, in order.
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

        waiting: collections.deque[tuple[Block, Future[Any]]] = collections.deque()
        for block in blocks:
            if len(waiting) == processes * MAX_QUEUED:
                first, future = waiting.popleft()
                yield first, future.result()
            waiting.append((block, threads.submit(encode, block)))
        for first, future in waiting:
            yield first, future.result()


class EncodingProcess:
    """An `Encoder` in a child process, which always ends when this process does.

    Args:
        models: See `Encoder`.
    """

    def __init__(self, models: tuple[bytes, bytes]) -> None:
        program = PROGRAM.format(path=sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {LIGHT: "1"},
        )
        # For type checkers: with pipes, neither is None.
        self._requests = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        self._send(models)

    def __call__(self, block: Block) -> tuple[EncodedSide, EncodedSide]:
        self._send(block)
        try:
            return pickle.load(self._answers)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._make_error() from error

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        for stream in (self._answers, self._requests):
            try:
                stream.close()
            except BrokenPipeError:  # data had not been sent yet
                pass
        self._process.wait()

    def _send(self, message):
        try:
            pickle.dump(message, self._requests)
            self._requests.flush()
        except BrokenPipeError as error:
            raise self._make_error() from error

    def _make_error(self):
        status = self._process.wait()
        self.close()
        return ValueError(
            f"A tokenizing process died (exit status {status}; out of memory?): run prepare again "
            "with fewer processes, which resumes from here."
        )


def run_encoder() -> None:
    """Encodes blocks from stdin to stdout, until the input ends; see `EncodingProcess`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    encoder = Encoder(pickle.load(requests))
    while True:
        try:
            block = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(encoder(block), answers)
        answers.flush()
