"""Runs an exported version with TensorFlow's C++ loader, in a process without Python ops."""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any, Self, cast

from keras_transformer.serving import c_api
from keras_transformer.serving.structure import read_signatures
from keras_transformer.serving.versions import GRAPH
from keras_transformer.utils import Path

PROGRAM = os.path.abspath(c_api.__file__)
NOISE = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]")  # in errors, for TensorFlow's authors only
MAX_REASON = 300  # characters
# Libraries of tensorflow-text's kernels, and what their ops' names begin with. A server has all.
TEXT_OPS = {
    "tensorflow_text/python/ops/_sentencepiece_tokenizer.so": b"Sentencepiece",
    "tensorflow_text/python/ops/_fast_wordpiece_tokenizer.so": b"FastWordpiece",
    "tensorflow_text/python/ops/_normalize_ops.so": b"NormalizeUTF8",
}
# As export/ configures a server: oneDNN reorders weights for bfloat16 units once, not for every
# product again, which is right only where weights do not change, as in a version that is served.
# Each operation runs on one core, because requests come at the same time; see threads.py. And
# oneDNN is on, which TensorFlow leaves off where there is AVX2 only.
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}


class ServerProcess:
    """Loads a version directory as TF Serving does and answers requests; see `c_api.py`.

    `predict_all` runs `threads` requests at once. With `optimize`, as in a server, TensorFlow
    rewrites the graph at the first request, which takes longer than a few sentences do. Memory and
    processor time can be `limited`, for an unknown graph.

    Attributes:
        signatures: names of the signatures that the version has.
        load_seconds: how long loading took.

    Example:

    >>> with ServerProcess("export/models/dates/1") as server:
    ...     server.predict(["9 May 1998"])
    {'text': ['1998-05-09'], 'log_prob': [-0.01]}
    """

    def __init__(
        self,
        version_dir: Path,
        threads: int = 1,
        optimize: bool = True,
        limited: bool = False,
    ) -> None:
        if not is_supported():
            raise ValueError("This needs Linux; elsewhere, use keras_transformer.load_saved_model.")
        version_dir = os.path.abspath(os.fspath(version_dir))
        signatures = read_signatures(version_dir)
        self.signatures = tuple(signatures)
        options = [f"--threads={threads}", *["--unoptimized"] * (not optimize)]
        options += ["--limited"] * limited
        with loadable_path(version_dir) as path:
            self._start(path, options)
            self._write(signatures)
            first = self._read()
        if "load_error" in first:
            self.close()
            raise ValueError(f"{version_dir} cannot be loaded: {one_line(first['load_error'])}.")
        self.load_seconds = first["load_seconds"]

    def _start(self, version_dir, options):
        # find_spec locates TensorFlow without importing it.
        tensorflow = importlib.util.find_spec("tensorflow")
        site_packages = os.path.dirname(os.path.dirname(tensorflow.origin))
        # -S: no site-packages; -E: no PYTHONPATH. So the process cannot import TensorFlow.
        command = [sys.executable, "-S", "-E", PROGRAM, site_packages, version_dir]
        # Loading an unused library takes time.
        with open(os.path.join(version_dir, GRAPH), "rb") as file:
            content = file.read()
        libraries = [library for library, name in TEXT_OPS.items() if name in content]
        command += [os.path.join(site_packages, library) for library in libraries]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command + options,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=ENVIRONMENT | os.environ,
            cwd=os.path.sep,  # so that no relative path of the model can be right by chance
        )
        # Popen's own are None without a pipe.
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)

    def predict(self, inputs: Any, signature: str = c_api.DEFAULT) -> dict[str, Any]:
        """Runs one batch: {name of an output: nested lists}, or {"error": message}.

        `inputs` are {name: nested lists}; for a signature with one input, the lists are enough.
        Strings in the outputs are str, or bytes if they are not UTF-8. A RuntimeError with the end
        of its log is raised if the process has died.
        """
        (reply,) = self.predict_all([(inputs, signature)])
        return reply

    def predict_all(self, requests: Sequence[tuple[Any, str]]) -> list[dict[str, Any]]:
        """Runs a list of (inputs, signature), several at a time; see `predict`."""

        def write():
            for inputs, signature in requests:
                self._write({"signature_name": signature, "inputs": inputs})

        # In a thread: a pipe is full after a while, unless the other one is emptied.
        writer = threading.Thread(target=write)
        writer.start()
        try:
            replies = [self._read() for _ in requests]
        finally:  # the writer ends too if the process has been killed
            writer.join()
        return [reply.get("outputs", reply) for reply in replies]

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):  # unsent requests, if it has died
            self._requests.close()
        self._process.wait()
        self._replies.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, request):
        line = json.dumps(request, default=c_api.bytes_to_json).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # reading raises if the process has died
            self._requests.write(line)
            self._requests.flush()

    def _read(self):
        reply = b""
        try:
            reply = self._replies.readline()
        finally:
            # Interrupted, or dead within a reply: a later one would be that to another request.
            if not (is_whole := reply.endswith(b"\n")):
                self._process.kill()
        if is_whole:
            return json.loads(reply, object_hook=c_api.bytes_from_json)
        status, detail = self._process.wait(), ""
        if status == -9:
            detail = " (killed, perhaps for its memory or time: use a smaller batch)"
        elif not self._log.closed:
            self._log.seek(0)
            detail = f":\n{self._log.read().decode(errors='replace')[-2000:]}"
        self.close()
        raise RuntimeError(f"The server process ended with status {status}{detail}")


@contextlib.contextmanager
def loadable_path(directory: Path) -> Iterator[str]:
    """A path of a version for TensorFlow, which reads weights by a pattern: without `*?[` and `\\`.

    Needed until it is loaded: a link to the version if its own path holds one of them.
    """
    directory = os.path.abspath(os.fspath(directory))
    if not set(directory) & set("*?[\\"):
        yield directory
        return
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "version")
        os.symlink(directory, link)
        yield link


def is_supported() -> bool:
    """Whether this system has TensorFlow's C library under the names that are known here."""
    return sys.platform.startswith("linux")


def one_line(error: object) -> str:
    """An error of TensorFlow's, or of a process that died, as the end of a sentence."""
    return " ".join(NOISE.sub("", str(error)).split())[:MAX_REASON].rstrip(".: ")
