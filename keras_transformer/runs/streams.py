"""Standard streams that tolerate being closed: a training continues without its terminal."""

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class _StderrFile(io.FileIO):
    """stderr: drops output that cannot be written, as after a killed `tee` or a lost connection."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


class _StdoutFile(io.FileIO):
    """stdout: drops all output after its reader, such as `head`, has left.

    Attributes:
        reader_left: Whether the reader has left.
    """

    reader_left = False

    def write(self, data: Any) -> int:
        try:
            while not self.reader_left:
                if written := super().write(data):
                    return written
                select.select([], [self], [])  # a full non-blocking pipe
        except OSError as error:
            self.reader_left = True
            if not isinstance(error, BrokenPipeError):
                raise ValueError(
                    f"stdout cannot be written ({error.strerror}), and its output is incomplete: "
                    "run the command again; translate has --resume."
                ) from error
        return len(data)


def open_standard_streams() -> None:
    """Replaces closed standard streams by `/dev/null`.

    Otherwise the next file that is opened would get the number of a closed stream, and receive its
    output. `sys.stdin` stays None.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    results = _StdoutFile(1, "w", closefd=False)
    results.reader_left = sys.stdout is None or not is_stdout_read()
    sys.stdout = _wrap_text(sys.stdout, results)
    sys.stderr = _wrap_text(sys.stderr, _StderrFile(2, "w", closefd=False))


def check_stdout() -> None:
    """Checks that stdout is open, before the command computes anything."""
    if not is_stdout_read():
        raise ValueError("stdout is closed: open it, since this command prints its results.")


def is_stdout_read() -> bool:
    """Returns whether stdout is open and its reader has not left."""
    return not getattr(
        getattr(getattr(sys.stdout, "buffer", None), "raw", None), "reader_left", False
    )


@contextlib.contextmanager
def tolerate_closed_stderr() -> Iterator[None]:
    """Lets the process continue if stderr is closed or its reader leaves.

    A stream without a file descriptor, such as that of a notebook, stays unchanged.
    """
    stream: Any = sys.stderr
    with contextlib.ExitStack() as stack:
        if stream is None:
            stream = stack.enter_context(open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper) and not _tolerates_closing(stream):
            with contextlib.suppress(OSError):
                stream = _wrap_text(stream, _StderrFile(stream.fileno(), "w", closefd=False))
        stack.enter_context(contextlib.redirect_stderr(stream))
        yield


def _tolerates_closing(stream):
    return isinstance(getattr(stream.buffer, "raw", None), _StderrFile)


def _wrap_text(stream: Any, raw: io.FileIO) -> TextIO:
    """Wraps a raw file as a text stream with the options of `stream`, which may be None."""
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    if stream is not None:
        names = ("encoding", "errors", "line_buffering", "write_through")
        options = {name: getattr(stream, name) for name in names}
        with contextlib.suppress(OSError):
            stream.flush()
    return io.TextIOWrapper(io.BufferedWriter(raw), **options)
