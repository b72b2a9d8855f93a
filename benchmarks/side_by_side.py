"""Runs several systems in turn, each in a process of its own."""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile


@dataclasses.dataclass(frozen=True)
class System:
    """Something to time: a function of a module beside this one, and its options.

    Of everything that it does in one call, `work` says how much: times are per unit of work.
    """

    name: str
    module: str
    function: str
    options: dict = dataclasses.field(default_factory=dict)
    work: int = 1
    python: str = sys.executable  # of the environment it is in
    environment: dict = dataclasses.field(default_factory=dict)  # variables


@dataclasses.dataclass(frozen=True)
class Timing:
    """What rounds of a system took, seconds per unit of work, and the most memory it had.

    `first` is how long the first call of all took, seconds: it makes graphs and compiles them.
    """

    name: str
    seconds: tuple
    memory: int
    result: object = None
    first: float = 0.0

    @property
    def median(self):
        return statistics.median(self.seconds)


def time_systems(systems, rounds, together=False):
    """Times every system in turn, again and again, so that a slow moment hits all alike.

    Args:
        systems: List of `System`. One that cannot start, for a package that is not installed, is
            left out, with a message on stderr.
        rounds: Number of timed rounds.
        together: Whether all warm up at the same time: on a GPU they compile, on cores to spare.

    Returns:
        List of `Timing`, in their order.
    """
    with contextlib.ExitStack() as stack:
        workers = []
        for system in systems:
            workers.append(stack.enter_context(_Worker(system)))
            if not together:  # they share the cores
                workers[-1].is_ready()
        workers = [worker for worker in workers if worker.is_ready()]
        for _ in range(rounds):
            for worker in workers:
                worker.run()
    return [worker.timing() for worker in workers]


class _Worker:
    """The process of a system; see worker.py."""

    def __init__(self, system):
        self.system = system
        options = json.dumps(system.options)
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [
                system.python,
                "-m",
                "benchmarks.worker",
                system.module,
                system.function,
                options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ
            | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
            | system.environment,
            text=True,
        )
        self._replies = []

    @functools.cached_property
    def _first(self):
        """Seconds of the first call, which has ended; empty if the process has."""
        return self._process.stdout.readline()

    @functools.cache  # noqa: B019, there are few of them
    def is_ready(self):
        """Whether the process has got ready; says why not."""
        if self._first:
            return True
        print(f"{self.system.name} is left out: {self._reason()}", file=sys.stderr)
        return False

    def run(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            sys.exit(f"{self.system.name} has died: {self._reason()}")
        self._replies.append(json.loads(reply))

    def _reason(self):
        """What the process, which has ended, wrote last, or what ended it."""
        code = self._process.wait()
        self._log.seek(0)
        written = self._log.read().decode(errors="replace").strip().rpartition("\n")[2]
        return "killed: is there memory enough?" if code == -signal.SIGKILL else written

    def timing(self):
        work = self.system.work
        return Timing(
            self.system.name,
            tuple(reply["seconds"] / work for reply in self._replies),
            max(reply["memory"] for reply in self._replies),
            self._replies[-1]["result"],
            float(self._first),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()
