"""Processes of tests end with the test."""

import signal
import subprocess
import time

import pytest

from tests.support import child_process

# Prints the id of a process that it starts, which keeps its stdout open.
PARENT = ["bash", "-c", "sleep 1000 & echo $!; wait"]


def has_ended(process_id):
    """Waits for the end of a process that is not a child of this one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with open(f"/proc/{process_id}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":  # nobody waits for it
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


def test_no_process_outlives_its_test(tmp_path):
    """Whether the test fails, waits too long, or the process ends before what it started."""
    with pytest.raises(ZeroDivisionError):
        with child_process.running(PARENT, stdout=subprocess.PIPE) as process:
            grandchild = int(process.stdout.readline())
            raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL and has_ended(grandchild)
    with open(tmp_path / "out", "wb") as file, pytest.raises(subprocess.TimeoutExpired):
        child_process.run(PARENT, stdout=file, stderr=subprocess.PIPE, timeout=0.5)
    assert has_ended(int((tmp_path / "out").read_text()))
    command = ["bash", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!"]
    done = child_process.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and has_ended(int(done.stdout))
