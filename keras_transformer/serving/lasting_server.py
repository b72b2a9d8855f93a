"""What answers requests to an exported version, from the first of them on."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from keras_transformer.kernels import available_cores
from keras_transformer.serving.acceptance.server_process import (
    ServerProcess,
    is_supported,
    one_line,
)
from keras_transformer.typing import Path

FEW = 256  # texts, for which rewriting the graph takes longer than it saves


class LastingServer:
    """Runs batches of a version's signatures: on Linux in a `ServerProcess`, elsewhere here.

    The process is started by the first request and ends with this object. One whose graph is
    rewritten takes its place as soon as more than `FEW` texts have come.

    Args:
        directory: A version directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.threads = available_cores()
        self._lock = threading.Lock()
        self._texts = 0
        self._run: Any = None
        self._end: Any = None

    def predict_all(
        self, requests: Sequence[tuple[dict[str, Any], str]], texts: int
    ) -> list[dict[str, Any]]:
        """Runs batches.

        Args:
            requests: (inputs, name of the signature) of each.
            texts: How many texts there are in all of them.

        Returns:
            List of what `ServerProcess.predict` returns.

        Raises:
            ValueError: If the version cannot be loaded, its process dies, or a batch not be run.
        """
        if not requests:
            return []
        with self._lock:
            before, self._texts = self._texts, self._texts + texts
            try:
                if self._run is None or before <= FEW < self._texts:
                    self._start(optimize=self._texts > FEW)
                replies = self._run(requests)
            except (ValueError, RuntimeError) as error:  # it cannot be loaded, or has died
                self.close()
                raise ValueError(f"{one_line(error)}. Export the run anew.") from error
        for reply in replies:
            if "error" in reply:
                reason = one_line(reply["error"])
                raise ValueError(f"{self.directory} answers with an error: {reason}.")
        return replies

    def close(self) -> None:
        """Ends the process."""
        if self._end is not None:
            self._end()
        self._run = self._end = None

    def _start(self, optimize):
        if is_supported():
            self.close()
            server = ServerProcess(self.directory, threads=self.threads, optimize=optimize)
            self._end = weakref.finalize(self, server.close)
            self._run = server.predict_all
        elif self._run is None:
            from keras_transformer.serving.saved_model import load_signatures

            run = load_signatures(self.directory)
            self._run = lambda requests: [run(inputs, name) for inputs, name in requests]
