"""What the first signal does, and a second one."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, time
from keras_transformer.runs.resume_training import save_on_signals

class Training:
    def request_exit(self, status):
        print("stop", status, flush=True)

numbers = [int(number) for number in sys.argv[2:]]
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
before = signal.getsignal(signal.SIGTERM)
try:
    with save_on_signals(Training()):
        for number in numbers:
            os.kill(os.getpid(), number)
            print("went on", flush=True)
finally:
    assert signal.getsignal(signal.SIGTERM) is before
print("ended as ever")
"""


@pytest.mark.parametrize(
    "numbers, status, said",
    [
        ([], 0, "ended as ever\n"),
        ([15], 143, "stop 143\nwent on\n"),
        ([2], 130, "stop 130\nwent on\n"),
        ([15, 2], 130, "stop 143\nwent on\n"),
        ([15, 15], 143, "stop 143\nwent on\n"),
        ([1], 129, "stop 129\nwent on\n"),
        ([1, 1], 129, "stop 129\nwent on\nwent on\n"),  # the shell's and the system's
        ([15, 1], 143, "stop 143\nwent on\nwent on\n"),  # systemd's
        ([1, 15], 143, "stop 129\nwent on\n"),
    ],
)
def test_signals(numbers, status, said):
    command = [sys.executable, "-c", PROGRAM, "SIG_DFL", *map(str, numbers)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (status, said), process.stderr
    assert len(process.stderr.splitlines()) == bool(numbers)
    if numbers:
        name = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}[numbers[0]]
        assert process.stderr.startswith(f"keras-transformer: {name}: saving the training")


def test_nohup_is_respected():
    command = [sys.executable, "-c", PROGRAM, "SIG_IGN", "1"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "went on\nended as ever\n"), process.stderr


def test_a_terminal_that_is_gone_does_not_hinder_the_saving():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", PROGRAM, "SIG_DFL", "1"]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    assert (process.returncode, process.stdout) == (129, b"stop 129\nwent on\n")
