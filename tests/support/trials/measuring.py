"""A command in a process of its own, and what that and those which it started have taken."""

import dataclasses
import os
import subprocess
import tempfile
import threading
import time

LONGEST = 300  # seconds


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
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=error)
        clock = threading.Timer(LONGEST, process.kill)
        clock.start()
        try:
            process.stdin.write(stdin)
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has refused what it was to read for
        _, status, usage = os.wait4(process.pid, 0)
        clock.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)  # nobody need wait for it again
        texts = [file.seek(0) or file.read() for file in (output, error)]
    seconds = time.perf_counter() - started
    processor = usage.ru_utime + usage.ru_stime
    return Measured(process.returncode, *texts, seconds, processor, usage.ru_maxrss)
