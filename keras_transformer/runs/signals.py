"""What a training does when it is told to end."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_transformer.runs.resume_training import ResumeTraining

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def saved_by_signals(training: "ResumeTraining") -> Iterator[None]:
    """Has SIGINT and SIGTERM save a training and end the process, with status 130 or 143.

    After the update under way; while it is validating, after that. A second signal ends the process
    at once, and the training goes on from the last point. Handlers are set in the main thread only:
    Python has none in others.

    Args:
        training: The callback that saves it.
    """
    received: list[int] = []

    def end(number, _):
        status = 128 + number
        if received:
            os._exit(status)
        received.append(status)
        training.stop(status)
        # Not by print, which cannot be begun again in the middle of itself.
        os.write(
            2,
            f"keras-transformer: {signal.Signals(number).name}: the training is saved and ends; "
            "--resume goes on with it (another signal ends it at once)\n".encode(),
        )

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
        if received:  # at the very end, when everything had been saved
            raise SystemExit(received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
