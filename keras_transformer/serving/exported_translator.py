"""An exported version that translates text, without importing TensorFlow, which takes seconds."""

import os

from keras_transformer.serving.acceptance.server_process import ServerProcess, read_signatures
from keras_transformer.serving.versions import DEFAULT, refuse_other, version_dir
from keras_transformer.translation.sentence_batches import as_bytes, in_order, sorted_batches
from keras_transformer.typing import Path, Texts

FEW = 256  # sentences, for which rewriting the graph takes longer than it saves


def translate_exported(path: Path, texts: Texts, batch_size: int = 256) -> list[str]:
    """Translates a list of sentences as a server would, in a process of its own.

    Args:
        path: A version directory; or the one above, of which the highest version is taken.
        texts: Strings or byte strings.
        batch_size: Number of texts per batch.

    Returns:
        List of strings, in the same order.

    Raises:
        ValueError: If there is no SavedModel, or it cannot be loaded or is no translator's.
    """
    directory = version_dir(os.fspath(path))
    signatures = read_signatures(directory)
    if signatures:
        _, outputs = signatures.get(DEFAULT, (None, None))
        refuse_other(directory, outputs)
    rows = as_bytes(texts)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    batches = sorted_batches([len(row) for row in rows], batch_size, threads)
    optimize = len(rows) > FEW
    with ServerProcess(directory, threads=threads, optimize=optimize) as server:
        requests = [([rows[i] for i in batch], DEFAULT) for batch in batches]
        replies = server.predict_all(requests)
    for reply in replies:
        if "error" in reply:
            raise ValueError(f"{directory} answers with an error: {reply['error']}")
    return in_order(batches, [reply["text"] for reply in replies])
