"""Standard streams that are closed, or that nobody reads any more: no reason to end a training."""

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class _Progress(io.FileIO):
    """stderr: drops what cannot be written, as after a killed `tee` or a lost connection."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


class _Results(io.FileIO):
    """stdout: drops everything once its reader has left, such as `head`.

    Attributes:
        lost: Whether it does.
    """

    lost = False

    def write(self, data: Any) -> int:
        try:
            while not self.lost:
                if written := super().write(data):
                    return written
                select.select([], [self], [])  # a pipe that does not block, and is full
        except OSError as error:
            self.lost = True
            if not isinstance(error, BrokenPipeError):
                raise ValueError(
                    f"The results cannot be written to stdout ({error.strerror}): what is there is "
                    "incomplete. Run the command again where they can; translate can --resume."
                ) from error
        return len(data)


def open_standard_streams() -> None:
    """Makes the three streams of a command usable, whichever of them the caller has closed.

    `/dev/null` takes the place of a closed one, else the next file that is opened would be written
    to as if it were stderr. `sys.stdin` stays None.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
    results = _Results(1, "w", closefd=False)
    results.lost = sys.stdout is None or not is_stdout_read()
    sys.stdout = _text(sys.stdout, results)
    sys.stderr = _text(sys.stderr, _Progress(2, "w", closefd=False))


def check_stdout() -> None:
    """Refuses, before anything is computed, to print where nobody reads.

    Raises:
        ValueError: If stdout is closed.
    """
    if not is_stdout_read():
        raise ValueError("stdout is closed, but this command prints its results: open it.")


def is_stdout_read() -> bool:
    """Tells whether anybody may read stdout: it was not closed, and its reader has not left."""
    return not getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "lost", False)


@contextlib.contextmanager
def lasting_stderr() -> Iterator[None]:
    """Has this process go on where stderr is closed or loses its reader.

    A stream that is no file of the system, such as a notebook's, stays as it is.
    """
    stream: Any = sys.stderr
    with contextlib.ExitStack() as stack:
        if stream is None:
            stream = stack.enter_context(open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper) and not _is_lasting(stream):
            with contextlib.suppress(OSError):
                stream = _text(stream, _Progress(stream.fileno(), "w", closefd=False))
        stack.enter_context(contextlib.redirect_stderr(stream))
        yield


def _is_lasting(stream):
    return isinstance(getattr(stream.buffer, "raw", None), _Progress)


def _text(stream: Any, raw: io.FileIO) -> TextIO:
    """A stream of text like another one, or None, on a raw file."""
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    if stream is not None:
        names = ("encoding", "errors", "line_buffering", "write_through")
        options = {name: getattr(stream, name) for name in names}
        with contextlib.suppress(OSError):
            stream.flush()
    return io.TextIOWrapper(io.BufferedWriter(raw), **options)
