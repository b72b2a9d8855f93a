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
from typing import IO, Any, Self, TypeAlias, cast

from keras_transformer.serving.acceptance import c_api
from keras_transformer.serving.acceptance.graph import NAME, read_meta_graphs
from keras_transformer.utils import Path

PROGRAM = os.path.abspath(c_api.__file__)
NOISE = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]")  # in errors, for TensorFlow's authors only
PATTERN = re.compile(r"[*?\[\\]")
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


# {name of a signature: [inputs, outputs]}, both {key: (name of the tensor, its type's number)}
Signatures: TypeAlias = dict[str, list[dict[str, tuple[str, int]]]]


class ServerProcess:
    """Loads a version directory as TF Serving does and answers requests; see `c_api.py`.

    Args:
        version_dir: path of the directory that holds saved_model.pb.
        ops: whether to load the kernels of tensorflow-text that the version names; a server has
            all of them.
        threads: number of requests that `predict_all` runs at once.
        optimize: whether TensorFlow rewrites the graph at the first request, as in a server: for
            few sentences, that takes longer than they do.

    Attributes:
        signatures: names of the signatures that the version has.
        load_seconds: how long loading took.

    Raises:
        ValueError: with TensorFlow's message, if the model cannot be loaded; or on a system where
            TensorFlow's libraries have other names than on Linux.

    Example:

    >>> with ServerProcess("export/models/dates/1") as server:
    ...     server.predict(["9 May 1998"])
    {'text': ['1998-05-09'], 'log_prob': [-0.01]}
    """

    def __init__(
        self,
        version_dir: Path,
        ops: bool = True,
        threads: int = 1,
        optimize: bool = True,
    ) -> None:
        if not is_supported():
            raise ValueError(
                "Exports are tested with TensorFlow's C library for Linux: run this on Linux."
            )
        version_dir = os.path.abspath(os.fspath(version_dir))
        with loadable_path(version_dir) as path:
            self._start(path, ops, threads, optimize)
            signatures = read_signatures(version_dir)
            self.signatures = tuple(signatures)
            self._write(signatures)
            first = self._read()
        if "load_error" in first:
            self.close()
            raise ValueError(f"{version_dir} cannot be loaded: {one_line(first['load_error'])}.")
        self.load_seconds = first["load_seconds"]

    def _start(self, version_dir, ops, threads, optimize):
        # find_spec locates TensorFlow without importing it.
        tensorflow = importlib.util.find_spec("tensorflow")
        if tensorflow is None or tensorflow.origin is None:
            raise ValueError("Exports are tested with TensorFlow, which is not installed.")
        site_packages = os.path.dirname(os.path.dirname(tensorflow.origin))
        # -S: no site-packages; -E: no PYTHONPATH. So the process cannot import TensorFlow.
        command = [sys.executable, "-S", "-E", PROGRAM, site_packages, version_dir]
        libraries = _libraries(version_dir) if ops else []
        command += [os.path.join(site_packages, library) for library in libraries]
        command += [] if optimize else ["--unoptimized"]
        command += [f"--threads={threads}"]
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
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
        """Runs one batch.

        Args:
            inputs: {name: value}, the values str, bytes, numbers, or nested lists of them; for a
                signature with one input, the value alone is enough.
            signature: its name.

        Returns:
            The outputs by name, as nested lists, strings as str, or bytes if they are not UTF-8;
            or {"error": message}.

        Raises:
            RuntimeError: if the process has died, with the end of its log.
        """
        self._write({"signature_name": signature, "inputs": inputs})
        reply = self._read()
        return reply.get("outputs", reply)

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

    @property
    def log(self) -> str:
        """The process's stderr; its last line is the largest memory it had."""
        if not self._log.closed:
            self._log.seek(0)
            self._text = self._log.read().decode(errors="replace")
        return self._text

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):  # unsent requests, if it has died
            self._requests.close()
        self._process.wait()
        self._replies.close()
        _ = self.log  # keeps it
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
        status = self._process.wait()
        self.close()
        killed = " (killed, perhaps for its memory: use a smaller batch)" * (status == -9)
        log = "" if killed else f":\n{self.log[-2000:]}"
        raise RuntimeError(f"The server process ended with status {status}{killed}{log}")


@contextlib.contextmanager
def loadable_path(directory: Path) -> Iterator[str]:
    """A path of a version for TensorFlow, which reads weights by a pattern: without `*?[` and `\\`.

    Needed until it is loaded: a link to the version if its own path holds one of them.
    """
    directory = os.path.abspath(os.fspath(directory))
    if not PATTERN.search(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory() as folder:
        link = os.path.join(folder, "version")
        os.symlink(directory, link)
        yield link


def is_supported() -> bool:
    """Whether this system has TensorFlow's C library under the names that are known here."""
    return sys.platform.startswith("linux")


def _libraries(version_dir):
    """Libraries of the ops that a version may have: loading an unused one takes time."""
    try:
        with open(os.path.join(version_dir, NAME), "rb") as file:
            content = file.read()
    except OSError:
        return []  # the loader reports what is wrong
    return [library for library, name in TEXT_OPS.items() if name in content]


def read_signatures(version_dir: Path) -> Signatures:
    """{name: [inputs, outputs]}, both {key: (name of the tensor, its type's number)}.

    Read without TensorFlow, whose import takes seconds. Empty for an invalid version.
    """
    try:
        (meta_graph,) = read_meta_graphs(version_dir)
    except ValueError:
        return {}  # the loader reports what is wrong
    return {
        name: [
            {key: (tensor.name, tensor.dtype) for key, tensor in tensors.items()}
            for tensors in (signature.inputs, signature.outputs)
        ]
        for name, signature in meta_graph.signature_def.items()
    }


def one_line(error: object) -> str:
    """An error of TensorFlow's, or of a process that died, as the end of a sentence."""
    return " ".join(NOISE.sub("", str(error)).split())[:MAX_REASON].rstrip(".: ")
