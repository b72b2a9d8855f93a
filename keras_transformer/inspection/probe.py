"""What native code makes of a model's files, tried in a process of its own, which may die of it.

usage: python -m keras_transformer.inspection.probe FILE ...

A file is a .keras, .weights.h5, .spm or .wordpiece.

Prints a JSON list with one object a file, {"config": …, "weights": {name: shape}} or {"pieces":
number}, or as the last {"refused": a sentence}. Memory and time are limited by what the files have
of bytes. No TensorFlow is imported.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.inspection.bounded_files import read_bytes
from keras_transformer.inspection.keras_archive import open_archive, open_weights, read_config
from keras_transformer.inspection.sentencepiece_model import MOST_BYTES, check_sentencepiece_model
from keras_transformer.inspection.wordpiece_model import count_ids, read_wordpiece_model

MEMORY = 400 << 20  # bytes, and SHARE of the largest file
SHARE = 8  # of a vocabulary's file: what is parsed takes several times as much
SECONDS, BYTES_A_SECOND = 10, 20 << 20
TRIAL = ("The quick brown fox — 東京 été 🙂 １２\u0301\t ", "")  # what a vocabulary has to take


def probe(path: str) -> dict[str, Any]:
    """Looks at one file.

    Raises:
        ValueError: If it is not fit to be loaded.
    """
    from keras_transformer.inspection.weights_file import describe_weights

    if path.endswith(".keras"):
        with open_archive(path) as archive:
            config = read_config(archive)
            with open_weights(archive) as file:
                return {"config": config, "weights": describe_weights(path, file)}
    if path.endswith((".spm", ".wordpiece")):
        return {"pieces": _try_vocabulary(path)}
    return {"weights": describe_weights(path)}


def _try_vocabulary(path):
    """Number of ids of a vocabulary; a SentencePiece model has cut a few texts."""
    model = read_bytes(path, MOST_BYTES)
    kind = "SentencePiece" if path.endswith(".spm") else "WordPiece"
    try:
        if kind == "SentencePiece":
            return _try_sentencepiece(model)
        return count_ids(read_wordpiece_model(model)[0])
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"{path} is no {kind} model that can be used ({reason}): copy it anew from where it "
            "was written."
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
        resource.RLIMIT_DATA: MEMORY + SHARE * min(size, MOST_BYTES),
        resource.RLIMIT_CPU: SECONDS + size // BYTES_A_SECOND,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        _, highest = resource.getrlimit(what)
        allowed = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(what, (allowed, highest))


def main(paths: Sequence[str], probe: Callable[[str], dict[str, Any]] = probe) -> None:
    """Looks at files; stops at the first that is not fit.

    Args:
        paths: Their names.
        probe: What looks at one, and raises a ValueError where it is not fit.
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
        answers.append({"refused": f"{what}: it is damaged, or made to do so."})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1:])
