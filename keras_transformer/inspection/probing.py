"""Lets native code open files in a separate process first, so that only that process can crash.

usage: python -m keras_transformer.inspection.probing FILE ...

A file is a .keras, .weights.h5, .spm or .wordpiece.

Prints a JSON list with one object for each file, {"config": …, "weights": {name: shape}} or
{"pieces": number}, or as the last {"refused": a sentence}. Memory and time are limited by the sizes
of the files. TensorFlow is not imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.inspection.files import read_bytes
from keras_transformer.inspection.vocabularies import (
    MAX_BYTES,
    check_sentencepiece_model,
    count_ids,
    read_wordpiece_model,
)
from keras_transformer.utils import Path

PROGRAM = "keras_transformer.inspection.probing"
MAX_WAIT = 600  # seconds; its own limit, of processor time, comes first
# One thread is enough, and each of a numerical library's takes its share of memory.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}

MEMORY = 400 << 20  # bytes, and SHARE of the largest file
SHARE = 8  # of a vocabulary's file: parsing takes several times as much
SECONDS, BYTES_A_SECOND = 10, 20 << 20
TRIAL = (
    "The quick brown fox — 東京 été 🙂 １２\u0301\t ",
    "",
)  # texts for a vocabulary to tokenize


class Probe:
    """Starts to probe files while this process does something else.

    Args:
        paths: Names of `.keras`, `.weights.h5`, `.spm` and `.wordpiece` files.
        *options: Of the program, before them.
        program: Name of the module that probes them.

    Example:

    >>> model, source = Probe(["runs/dates/model.keras", "runs/dates/source.spm"]).answers()
    >>> source["pieces"]
    713
    """

    def __init__(self, paths: Sequence[Path], *options: str, program: str = PROGRAM) -> None:
        self.paths = [os.path.abspath(os.fspath(path)) for path in paths]
        self.names = [os.fspath(path) for path in paths]
        command = [sys.executable, "-m", program, *options, *self.paths]
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=os.path.sep,
        )

    def answers(self) -> list[dict[str, Any]]:
        """Waits for what is said of the files, see `probe`."""
        try:
            output, _ = self._process.communicate(timeout=MAX_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
        if self._process.returncode:
            raise ValueError(
                f"{' or '.join(self.names)} is corrupted: a process that opened it ended with "
                f"status {self._process.returncode}. Copy it again from its origin."
            )
        answers = json.loads(output)
        if refused := answers[-1].get("refused"):
            for path, name in zip(self.paths, self.names, strict=True):
                refused = refused.replace(path, str(name))
            raise ValueError(refused)
        return answers


def probe(path: str) -> dict[str, Any]:
    """Probes one file."""
    from keras_transformer.inspection import keras_file  # HDF5, only in this process

    if path.endswith(".keras"):
        with keras_file.open_archive(path) as archive:
            config = keras_file.read_config(archive)
            with keras_file.StoredMember(archive, keras_file.WEIGHTS) as file:
                return {"config": config, "weights": keras_file.describe_weights(path, file)}
    if path.endswith((".spm", ".wordpiece")):
        return {"pieces": _try_vocabulary(path)}
    return {"weights": keras_file.describe_weights(path)}


def _try_vocabulary(path):
    """Counts the ids of a vocabulary; a SentencePiece model tokenizes a few texts."""
    model = read_bytes(path, MAX_BYTES)
    kind = "SentencePiece" if path.endswith(".spm") else "WordPiece"
    try:
        if kind == "SentencePiece":
            return _try_sentencepiece(model)
        return count_ids(read_wordpiece_model(model)[0])
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{path} is not a valid {kind} model ({reason}): copy or download it again."
        ) from None


def _try_sentencepiece(model):
    import sentencepiece

    pieces = check_sentencepiece_model(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in TRIAL:
        processor.decode(processor.encode(text))
    return pieces


def limit(paths: Sequence[str]) -> None:
    """Limits this process's memory and time, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    size = max((os.path.getsize(path) for path in paths if os.path.isfile(path)), default=0)
    limits = {
        resource.RLIMIT_DATA: MEMORY + SHARE * min(size, MAX_BYTES),
        resource.RLIMIT_CPU: SECONDS + size // BYTES_A_SECOND,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        _, highest = resource.getrlimit(what)
        allowed = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(what, (allowed, highest))


def main(paths: Sequence[str], probe: Callable[[str], dict[str, Any]] = probe) -> None:
    """Probes files and prints the answers; stops at the first that cannot be loaded.

    Args:
        paths: Their names.
        probe: Function that probes one, and raises a ValueError where it cannot be loaded.
    """
    limit(paths)
    answers: list[dict[str, Any]] = []
    try:
        for path in paths:
            answers.append(probe(path))
    except ValueError as error:
        answers.append({"refused": str(error)})
    except (MemoryError, RecursionError):
        what = f"{path} takes more memory to read than a file of its size should"
        answers.append({"refused": f"{what}: it is corrupted or malicious."})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1:])
