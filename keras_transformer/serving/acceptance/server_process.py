"""An exported version in the hands of TensorFlow's C++ loader, in a process without Python ops."""

import base64
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

from keras_transformer.typing import Path

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c_api.py")
NOISE = re.compile(r"\{\{.*?\}\}|\[\[.*?\]\]")  # in errors: what only TensorFlow's authors know
PATTERN = re.compile(r"[*?\[\\]")
LONGEST_REASON = 300  # characters
# Libraries of tensorflow-text's kernels, and what the ops in them are called. A server has all.
TEXT_OPS = {
    "tensorflow_text/python/ops/_sentencepiece_tokenizer.so": b"Sentencepiece",
    "tensorflow_text/python/ops/_fast_wordpiece_tokenizer.so": b"FastWordpiece",
    "tensorflow_text/python/ops/_normalize_ops.so": b"NormalizeUTF8",
}
# As export/ configures a server: oneDNN lays weights out for bfloat16 units once, not for every
# product again. Right only where weights do not change, as in a version that is served. And each
# operation is done by one core, for requests come at the same time; see threads.py.
# And oneDNN is on, which TensorFlow leaves off where there is AVX2 only.
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
        ops: whether the kernels of tensorflow-text that the version names are loaded, all of which
            a server has.
        xla: whether XLA is allowed, which a server does not unless told to.
        threads: number of requests run at once by `predict_all`.
        optimize: whether TensorFlow rewrites the graph at the first request, as in a server: for
            few sentences, that takes longer than they do.

    Attributes:
        signatures: names of the signatures that the version has.
        load_seconds: how long loading took.

    Raises:
        ValueError: with TensorFlow's message, if the model cannot be loaded; or on a system where
            TensorFlow's libraries go by other names than on Linux.

    Example:

    >>> with ServerProcess("export/models/dates/1") as server:
    ...     server.predict(["9 May 1998"])
    {'text': ['1998-05-09'], 'log_prob': [-0.01]}
    """

    def __init__(
        self,
        version_dir: Path,
        ops: bool = True,
        xla: bool = False,
        threads: int = 1,
        optimize: bool = True,
    ) -> None:
        if not is_supported():
            raise ValueError(
                "An export is tried with TensorFlow's C library for Linux: run this there."
            )
        version_dir = os.path.abspath(os.fspath(version_dir))
        with loadable_path(version_dir) as path:
            self._start(path, ops, xla, threads, optimize)
            signatures = read_signatures(version_dir)
            self.signatures = tuple(signatures)
            first = self._ask(signatures)
        if "load_error" in first:
            self.close()
            raise ValueError(f"{version_dir} cannot be loaded: {one_line(first['load_error'])}.")
        self.load_seconds = first["load_seconds"]

    def _start(self, version_dir, ops, xla, threads, optimize):
        # find_spec locates TensorFlow without importing it.
        tensorflow = importlib.util.find_spec("tensorflow")
        if tensorflow is None or tensorflow.origin is None:
            raise ValueError("An export is tried with TensorFlow, which is not installed.")
        site_packages = os.path.dirname(os.path.dirname(tensorflow.origin))
        # -S: no site-packages; -E: no PYTHONPATH. So the process cannot import TensorFlow.
        command = [sys.executable, "-S", "-E", PROGRAM, site_packages, version_dir]
        libraries = _libraries(version_dir) if ops else []
        command += [os.path.join(site_packages, library) for library in libraries]
        command += ["--xla"] if xla else []
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
        # Popen's own are None where no pipe was asked for.
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)

    def predict(self, inputs: Any, signature: str = "serving_default") -> dict[str, Any]:
        """Runs one batch.

        Args:
            inputs: {name: value}, the values str, bytes, numbers, or nested lists of them; of a
                signature with one input, the value alone will do.
            signature: its name.

        Returns:
            The outputs by name, as nested lists, strings as str, or bytes if they are not UTF-8;
            or {"error": message}.

        Raises:
            RuntimeError: if the process has died, with what it wrote last.
        """
        reply = self._ask({"signature_name": signature, "inputs": inputs})
        return reply.get("outputs", reply)

    def predict_all(self, requests: Sequence[tuple[Any, str]]) -> list[dict[str, Any]]:
        """Runs many batches, several at a time.

        Args:
            requests: list of (inputs, signature).

        Returns:
            List of what `predict` returns.

        Raises:
            RuntimeError: as `predict` does.
        """
        # Written beside the reading: a pipe takes only so much before the other is emptied.
        writer = threading.Thread(target=self._write_all, args=(requests,))
        writer.start()
        try:
            replies = [self._read() for _ in requests]
        finally:  # a process that has been killed lets the writer end too
            writer.join()
        return [reply.get("outputs", reply) for reply in replies]

    @property
    def log(self) -> str:
        """The text that the process has written to stderr; last, the largest memory it had."""
        if not self._log.closed:
            self._log.seek(0)
            self._text = self._log.read().decode(errors="replace")
        return self._text

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):  # what is not sent yet, to one that has died
            self._requests.close()
        self._process.wait()
        self._replies.close()
        _ = self.log  # keeps it
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request):
        self._write(request)
        return self._read()

    def _write_all(self, requests):
        for inputs, signature in requests:
            self._write({"signature_name": signature, "inputs": inputs})

    def _write(self, request):
        with contextlib.suppress(BrokenPipeError):  # that it has died, reading says
            self._requests.write(_to_json(request))
            self._requests.flush()

    def _read(self):
        if reply := self._replies.readline():
            return _from_json(reply)
        self._process.kill()
        status = self._process.wait()
        self.close()
        raise RuntimeError(f"The server process ended with status {status}:\n{self.log[-2000:]}")


@contextlib.contextmanager
def loadable_path(directory: Path) -> Iterator[str]:
    """A name of a version for TensorFlow, which reads weights by a pattern: without `*?[` and `\\`.

    Needed until it is loaded: a link to the version where its own name holds one of them.
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
    """Tells whether this system has TensorFlow's C library under the names that are known here."""
    return sys.platform.startswith("linux")


def _libraries(version_dir):
    """Libraries of the ops that a version may have: loading one that it has not takes time."""
    try:
        with open(os.path.join(version_dir, "saved_model.pb"), "rb") as file:
            content = file.read()
    except OSError:
        return []  # what is wrong, the loader says
    return [library for library, name in TEXT_OPS.items() if name in content]


def read_signatures(version_dir: Path) -> Signatures:
    """{name: [inputs, outputs]}, both {key: (name of the tensor, its type's number)}.

    Read without TensorFlow, whose import takes seconds.
    """
    from keras_transformer.serving.acceptance.saved_graph import read_meta_graphs

    try:
        (meta_graph,) = read_meta_graphs(version_dir)
    except ValueError:
        return {}  # what is wrong, the loader says
    return {
        name: [
            {key: (tensor.name, tensor.dtype) for key, tensor in tensors.items()}
            for tensors in (signature.inputs, signature.outputs)
        ]
        for name, signature in meta_graph.signature_def.items()
    }


def _to_json(value):
    return json.dumps(value, default=_bytes_to_json).encode() + b"\n"


def _from_json(line):
    return json.loads(line, object_hook=_bytes_from_json)


def _bytes_to_json(value):
    return {"b64": base64.b64encode(value).decode()}


def _bytes_from_json(value):
    return base64.b64decode(value["b64"]) if set(value) == {"b64"} else value


def one_line(error: object) -> str:
    """An error of TensorFlow's, or of a process that died, as the end of a sentence."""
    return " ".join(NOISE.sub("", str(error)).split())[:LONGEST_REASON].rstrip(".: ")
