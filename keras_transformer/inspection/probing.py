"""Has files probed in a process of its own, whose death is a sentence of this one."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer.typing import Path

PROGRAM = "keras_transformer.inspection.probe"
LONGEST_WAIT = 600  # seconds; its own limit, of processor time, comes first
# One thread is enough, and each of a numerical library's takes its share of memory.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}


class Probe:
    """Files under way to be looked at, while this process does something else.

    Args:
        paths: Names of `.keras`, `.weights.h5`, `.spm` and `.wordpiece` files.
        *options: Of the program, before them.
        program: Name of the module that looks at them.

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
        """Waits for what is said of the files, as `probe` has it.

        Raises:
            ValueError: If one is not fit to be loaded.
        """
        try:
            output, _ = self._process.communicate(timeout=LONGEST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
        if self._process.returncode:
            raise ValueError(
                f"{' or '.join(self.names)} is damaged: a process that opened it ended with status "
                f"{self._process.returncode}. Copy it anew from where it was written."
            )
        answers = json.loads(output)
        if refused := answers[-1].get("refused"):
            for path, name in zip(self.paths, self.names, strict=True):
                refused = refused.replace(path, str(name))
            raise ValueError(refused)
        return answers
