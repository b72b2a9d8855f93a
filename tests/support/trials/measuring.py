"""A command in a process of its own, and what that and those which it started have taken."""

import dataclasses
import json
import os
import sys
import tempfile

from tests.support import child_process

LONGEST = 300  # seconds
# Between the two stands a small process: the memory that a process is said to have taken is at
# least that of the one which started it.
BETWEEN = """
import json, os, subprocess, sys, threading, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[3:])
clock = threading.Timer(float(sys.argv[2]), process.kill)
clock.start()
_, status, usage = os.wait4(process.pid, 0)
clock.cancel()
taken = {
    "returncode": os.waitstatus_to_exitcode(status),
    "seconds": time.perf_counter() - started,
    "processor_seconds": usage.ru_utime + usage.ru_stime,
    "kilobytes": usage.ru_maxrss,
}
with open(sys.argv[1], "w") as file:
    json.dump(taken, file)
process.returncode = taken["returncode"]  # nobody need wait for it again
"""


@dataclasses.dataclass(frozen=True)
class Measured:
    """A process that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes
    seconds: float
    processor_seconds: float
    kilobytes: int  # of memory, of the largest of its processes


def run_measured(command, stdin):
    """Runs a command; one that does not end is killed."""
    with tempfile.TemporaryDirectory() as folder:
        taken = os.path.join(folder, "taken.json")
        between = [sys.executable, "-S", "-c", BETWEEN, taken, str(LONGEST)]
        command = [*between, *command]
        done = child_process.run(command, stdin, check=True, capture_output=True)
        with open(taken) as file:
            return Measured(stdout=done.stdout, stderr=done.stderr, **json.load(file))
