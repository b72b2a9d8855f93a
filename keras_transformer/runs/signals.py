"""What a training does when it is told to end."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_transformer.runs.resume_training import ResumeTraining

# SIGHUP, which Windows has not, comes when a terminal or an ssh connection is gone.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextlib.contextmanager
def saved_by_signals(training: "ResumeTraining") -> Iterator[None]:
    """Has SIGINT, SIGTERM and SIGHUP save a training and end the process, with 128 + their number.

    After the update under way; while it is validating, after that. A second signal ends the process
    at once, and the training goes on from the last point; but for a SIGHUP, which may come twice,
    from the shell and from the system. Where it is ignored, as `nohup` has it, it stays so.
    Handlers are set in the main thread only: Python has none in others.

    Args:
        training: The callback that saves it.
    """
    received: list[int] = []
    hangup = getattr(signal, "SIGHUP", None)

    def end(number, _):
        status = 128 + number
        if received and number != hangup:
            os._exit(status)
        if received:
            return
        received.append(status)
        training.stop(status)
        # Not by print, which cannot be begun again in the middle of itself.
        text = (
            f"keras-transformer: {signal.Signals(number).name}: the training is saved and ends; "
            "--resume goes on with it (another signal ends it at once)\n"
        )
        with contextlib.suppress(OSError):  # a terminal that is gone
            os.write(sys.stderr.fileno(), text.encode())

    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = {getattr(signal, name) for name in NAMES if hasattr(signal, name)}
        if hangup and signal.getsignal(hangup) == signal.SIG_IGN:
            numbers.remove(hangup)
        before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
        if received:  # at the very end, when everything had been saved
            raise SystemExit(received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
