"""Runs an exported version directory the way TF Serving would; see c_api.py."""

import base64
import importlib.util
import json
import os
import subprocess
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c_api.py")
SENTENCEPIECE_OPS = "tensorflow_text/python/ops/_sentencepiece_tokenizer.so"


def run_through_c_api(version_dir, batches, ops=True, xla=False, timeout=300):
    """Sends batches to `serving_default` in a process without Python TensorFlow.

    Args:
        version_dir: path of the directory that holds saved_model.pb.
        batches: a list of inputs, each a list of rows of str or bytes. A bare row is sent as a
            tensor of rank 0, a list of lists of rows as one of rank 2.
        ops: whether tensorflow-text's SentencePiece kernels are loaded, as a server has them.
        xla: whether XLA is allowed, which a server does not unless told to.
        timeout: seconds, after which the process is killed.

    Returns:
        A list with one dictionary per batch: the outputs by name, as nested lists; or
        {"error": message} when that batch failed. Strings are str, or bytes if not UTF-8.

    Raises:
        RuntimeError: with TensorFlow's message, if the model cannot be loaded.
    """
    # find_spec locates TensorFlow without importing it.
    tensorflow_dir = os.path.dirname(importlib.util.find_spec("tensorflow").origin)
    site_packages = os.path.dirname(tensorflow_dir)
    # -S: no site-packages; -E: no PYTHONPATH. So the process cannot import TensorFlow.
    command = [sys.executable, "-S", "-E", PROGRAM, site_packages, os.fspath(version_dir)]
    command += [os.path.join(site_packages, SENTENCEPIECE_OPS)] if ops else []
    command += ["--xla"] if xla else []
    lines = [json.dumps({"inputs": batch}, default=_bytes_to_json) for batch in batches]
    process = subprocess.run(
        command,
        input="\n".join(lines).encode(),
        capture_output=True,
        timeout=timeout,
        cwd=os.path.sep,  # so that no relative path of the model can be right by chance
    )
    lines = process.stdout.splitlines()
    replies = [json.loads(line, object_hook=_bytes_from_json) for line in lines]
    if replies and "load_error" in replies[0]:
        raise RuntimeError(replies[0]["load_error"])
    if process.returncode != 0 or len(replies) != len(batches):
        log = process.stderr.decode(errors="replace")
        raise RuntimeError(f"c_api.py ended with {process.returncode}:\n{log}")
    return [reply.get("outputs", reply) for reply in replies]


def _bytes_to_json(value):
    return {"b64": base64.b64encode(value).decode()}


def _bytes_from_json(value):
    return base64.b64decode(value["b64"]) if set(value) == {"b64"} else value
