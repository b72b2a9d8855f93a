"""Lets native code open a file in a separate process first, so that only that process can crash.

Memory and time are limited by the size of the file.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from keras_transformer.utils import Path

MAX_WAIT = 600  # seconds; its own limit, of processor time, comes first
# One thread is enough, and each of a numerical library's takes its share of memory.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}

MEMORY = 400 << 20  # bytes, and SHARE of the file, up to MAX_BYTES
SHARE, MAX_BYTES = 8, 32 << 20
SECONDS, BYTES_A_SECOND = 10, 20 << 20


def probe(path: Path, program: str, *options: str) -> dict[str, Any]:
    """Runs a module that calls `answer` about a file, in a separate process; returns its answer."""
    command = [sys.executable, "-m", program, *options, os.path.abspath(path)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=os.path.sep,
            timeout=MAX_WAIT,
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        status, output = -9, b""
    if status:
        raise ValueError(
            f"{path} is corrupted: a process that opened it ended with status {status}. Copy it "
            "again from its origin."
        )
    found = json.loads(output)
    if refused := found.get("refused"):
        raise ValueError(refused.replace(os.path.abspath(path), os.fspath(path)))
    return found


def answer(path: str, look: Callable[[str], dict[str, Any]]) -> None:
    """Prints what `look` finds in a file, with limits; {"refused": a sentence} if it raises."""
    _limit(path)
    try:
        found = look(path)
    except ValueError as error:
        found = {"refused": str(error)}
    except (MemoryError, RecursionError):
        what = f"{path} takes more memory to read than a file of its size should"
        found = {"refused": f"{what}: it is corrupted or malicious."}
    print(json.dumps(found))


def _limit(path):
    """Limits this process's memory and time, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    limits = {
        resource.RLIMIT_DATA: MEMORY + SHARE * min(size, MAX_BYTES),
        resource.RLIMIT_CPU: SECONDS + size // BYTES_A_SECOND,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        _, highest = resource.getrlimit(what)
        allowed = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(what, (allowed, highest))
