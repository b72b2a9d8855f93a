"""Starts the processes of the tests, which end when the test leaves, whatever happens."""

import contextlib
import os
import resource
import signal
import subprocess


@contextlib.contextmanager
def running(command, **options):
    """A process in a session of its own: at the end, it and all that it started are killed."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError), process:
            pass  # closes the pipes, and waits


def run(command, input=None, timeout=None, check=False, capture_output=False, **options):
    """As `subprocess.run`, which does not kill what its process started."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(command, **options) as process:
        outputs = process.communicate(input, timeout)
    done = subprocess.CompletedProcess(command, process.returncode, *outputs)
    if check:
        done.check_returncode()
    return done


@contextlib.contextmanager
def largest_file(size):
    """This process can write no larger files: an error as that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def restore_signals():
    """Processes inherit which signals this one ignores, as under `nohup`: it handles them."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
