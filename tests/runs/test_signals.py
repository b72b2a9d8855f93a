"""What the first signal does, and a second one."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, time
from keras_transformer.runs.signals import saved_by_signals

class Training:
    def stop(self, status):
        print("stop", status, flush=True)

numbers = [int(number) for number in sys.argv[1:]]
before = signal.getsignal(signal.SIGTERM)
try:
    with saved_by_signals(Training()):
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
    ],
)
def test_signals(numbers, status, said):
    command = [sys.executable, "-c", PROGRAM, *map(str, numbers)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (status, said), process.stderr
    assert len(process.stderr.splitlines()) == bool(numbers)
    if numbers:
        name = {2: "SIGINT", 15: "SIGTERM"}[numbers[0]]
        assert process.stderr.startswith(f"keras-transformer: {name}: the training is saved")
