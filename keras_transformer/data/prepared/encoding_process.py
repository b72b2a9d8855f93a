"""A process of its own that turns text into ids; it has no TensorFlow."""

import os
import pickle
import signal
import subprocess
import sys
from typing import IO, cast

from keras_transformer import LIGHT
from keras_transformer.corpora.parallel_text import Block
from keras_transformer.data.prepared.encoder import EncodedSide, Encoder

# Not multiprocessing, which would run the user's script again, from its first line, in each one.
PROGRAM = """import sys
sys.path[:] = {path!r}
from keras_transformer.data.prepared.encoding_process import answer
answer()
"""


class EncodingProcess:
    """Does what an `Encoder` does, elsewhere. It ends when this process does, in whatever way.

    Args:
        models: As `Encoder` has them.
    """

    def __init__(self, models: tuple[bytes, bytes]) -> None:
        program = PROGRAM.format(path=sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {LIGHT: "1"},
        )
        # Popen's own are None where no pipe was asked for.
        self._requests = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        self._send(models)

    def __call__(self, block: Block) -> tuple[EncodedSide, EncodedSide]:
        self._send(block)
        try:
            return pickle.load(self._answers)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._gone() from error

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        for stream in (self._answers, self._requests):
            try:
                stream.close()
            except BrokenPipeError:  # what had not been sent yet
                pass
        self._process.wait()

    def _send(self, message):
        try:
            pickle.dump(message, self._requests)
            self._requests.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def _gone(self):
        status = self._process.wait()
        self.close()
        return ValueError(
            f"A process that tokenizes has ended (exit status {status}; out of "
            "memory?): prepare the corpus again with fewer processes, which goes on from here."
        )


def answer() -> None:
    """Encodes what comes on stdin, to stdout, until no more comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # control-C is for the one who asks
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    encoder = Encoder(pickle.load(requests))
    while True:
        try:
            block = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(encoder(block), answers)
        answers.flush()
