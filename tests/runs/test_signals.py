"""What the first signal does, and a second one."""

import json
import signal

import pytest

from tests.support.command_line import python

# Each case in a child of its own, in which the package has been imported already.
PROGRAM = """
import json, os, signal, sys
from keras_transformer.runs.resume_training import save_on_signals

class Training:
    def request_exit(self, status):
        print("stop", status, flush=True)

def attempt(name, of_hangups, numbers):
    os.dup2(os.open(f"{name}.out", os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(gone if "gone" in name else os.open(f"{name}.err", os.O_WRONLY | os.O_CREAT), 2)
    signal.signal(signal.SIGHUP, of_hangups)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with save_on_signals(Training()):
            for number in numbers:
                os.kill(os.getpid(), number)
                print("went on", flush=True)
    finally:
        assert signal.getsignal(signal.SIGTERM) is before
    print("ended as ever", flush=True)

os.chdir(sys.argv[1])
read, gone = os.pipe()
os.close(read)
for case in json.loads(sys.argv[2]):
    if not os.fork():
        attempt(*case)
        sys.exit()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
CASES = {
    "no signal": (signal.SIG_DFL, [], 0, "ended as ever\n"),
    "SIGTERM": (signal.SIG_DFL, [15], 143, "stop 143\nwent on\n"),
    "SIGINT": (signal.SIG_DFL, [2], 130, "stop 130\nwent on\n"),
    "SIGTERM, SIGINT": (signal.SIG_DFL, [15, 2], 130, "stop 143\nwent on\n"),
    "SIGTERM twice": (signal.SIG_DFL, [15, 15], 143, "stop 143\nwent on\n"),
    "SIGHUP": (signal.SIG_DFL, [1], 129, "stop 129\nwent on\n"),
    # The shell's and the system's; systemd's.
    "SIGHUP twice": (signal.SIG_DFL, [1, 1], 129, "stop 129\nwent on\nwent on\n"),
    "SIGTERM, SIGHUP": (signal.SIG_DFL, [15, 1], 143, "stop 143\nwent on\nwent on\n"),
    "SIGHUP, SIGTERM": (signal.SIG_DFL, [1, 15], 143, "stop 129\nwent on\n"),
    "nohup": (signal.SIG_IGN, [1], 0, "went on\nended as ever\n"),
    "SIGHUP, the terminal is gone": (signal.SIG_DFL, [1], 129, "stop 129\nwent on\n"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The folder of what was printed, and the statuses."""
    folder = tmp_path_factory.mktemp("signals")
    given = [(name, of_hangups, numbers) for name, (of_hangups, numbers, *_) in CASES.items()]
    statuses = python("-c", PROGRAM, folder, json.dumps(given)).split()
    return folder, dict(zip(CASES, map(int, statuses), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_signals(name, outcomes):
    folder, statuses = outcomes
    _, _, status, said = CASES[name]
    assert (statuses[name], (folder / f"{name}.out").read_text()) == (status, said)
    if name.endswith("gone"):
        return
    error = (folder / f"{name}.err").read_text()
    noted = name.startswith("SIG")
    assert error.count("\n") == noted
    first = name.replace(",", " ").split()[0]
    assert not noted or error.startswith(f"keras-transformer: {first}: saving the training")
