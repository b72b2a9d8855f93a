"""Processes of tests end with the test."""

import os
import subprocess

import pytest

from tests.support import child_process


@pytest.mark.parametrize("script", ["sleep 1000 & wait", "sleep 1000 &"])
def test_no_process_outlives_its_test(script):
    """Whether the test fails, waits too long, or the process ends before what it started.

    The other end of a pipe is closed once all of them have ended.
    """
    read, write = os.pipe()
    with pytest.raises(ZeroDivisionError):
        with child_process.running(["bash", "-c", script], stdout=write):
            raise ZeroDivisionError
    try:
        done = child_process.run(["bash", "-c", script], stdout=write, timeout=0.5)
    except subprocess.TimeoutExpired:
        assert script.endswith("wait")
    else:
        assert done.returncode == 0
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
