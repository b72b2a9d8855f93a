"""Serves the explorer's page on this machine, at an address that nobody can guess."""

import secrets
import socket
import threading
import webbrowser
from typing import Any, Self

from werkzeug.serving import WSGIRequestHandler, make_server

from keras_transformer.visualization.explorer.page_application import PageApplication
from keras_transformer.visualization.explorer.questions import Model

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")  # what a browser here may call it
LARGEST_PORT = 65535
WAITING = 128  # connections


def listen(port: int = 0) -> socket.socket:
    """Takes a port of this machine, which no other one can reach.

    Args:
        port: Its number; 0: whichever is free.

    Returns:
        A socket that listens, for `ExplorerServer`; whoever asked for it closes it.

    Raises:
        ValueError: If there is no such port, or it is taken.
    """
    if not 0 <= port <= LARGEST_PORT:
        raise ValueError(f"port must be from 0 to {LARGEST_PORT}, received {port}.")
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(WAITING)
    except OSError as error:
        listening.close()
        raise ValueError(
            f"Port {port} cannot be used ({error.strerror}): choose another --port, or leave it "
            "out."
        ) from error
    return listening


class ExplorerServer:
    """A page for one model: served by `run`, or by a thread within `with`.

    Args:
        model: What is asked; it is closed with the server.
        listening: What `listen` returned.

    Attributes:
        address: Of the page, with its token.
    """

    def __init__(self, model: Model, listening: socket.socket) -> None:
        self._model = model
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        self.address = f"http://{LOOPBACK}:{port}/{token}/"
        application = PageApplication(model, token, [f"{name}:{port}" for name in NAMES])
        # The socket is handed over, for Werkzeug would end the process where a port is taken.
        options: dict[str, Any] = {"threaded": True, "request_handler": _Handler}
        self._server = make_server(LOOPBACK, port, application, fd=listening.fileno(), **options)

    def run(self, browser: bool = True) -> None:
        """Serves until it is interrupted.

        Args:
            browser: Whether to open the page in the user's browser.
        """
        if browser:  # in a thread: one in the terminal would have to end first
            threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True).start()
        try:
            self._server.serve_forever()
        finally:
            self._model.close()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, args=(False,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    """Logs no request, for addresses hold the token, and says of no version what it is."""

    def log_request(self, *_: Any) -> None:
        pass

    def version_string(self) -> str:
        return "explorer"
