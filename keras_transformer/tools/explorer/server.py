"""Serves the explorer's page to a browser on this machine, at a secret address."""

import hmac
import importlib.resources
import json
import logging
import os
import secrets
import socket
import threading
import traceback
import webbrowser
from collections.abc import Collection, Iterable
from typing import Any, Self

from werkzeug.exceptions import BadRequest, Forbidden, HTTPException, MethodNotAllowed, NotFound
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from keras_transformer.runs.opening import Opened
from keras_transformer.tools.explorer.questions import ExploredRun, InvalidRequest

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")  # of this machine, in a browser's requests
MAX_PORT = 65535
BACKLOG = 128  # waiting connections
FIRST_FILE = "index.html"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
MAX_BYTES = 2**17  # of a request
# No content from other hosts, no scripts or styles but the page's own files, no framing.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the referrer would leak the token
    "Cache-Control": "no-store",
}


def listen(port: int = 0) -> socket.socket:
    """Listens on a port that only this machine can reach.

    Args:
        port: Its number; 0: any free port.

    Returns:
        A socket for `ExplorerServer`, to be closed by the caller.
    """
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"port must be from 0 to {MAX_PORT}, received {port}.")
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(
            f"Port {port} cannot be used ({error.strerror}): choose another --port, or omit it."
        ) from error
    return listening


def open_explorer(opened: Opened, listening: socket.socket) -> "ExplorerServer":
    """Creates the server of a run's page, which `run` starts; `listening` is from `listen`."""
    return ExplorerServer(ExploredRun(opened), listening)


class ExplorerServer:
    """A page for one model: served by `run`, or by a thread within `with`.

    Args:
        model: The model that answers.
        listening: What `listen` returned.

    Attributes:
        address: Of the page, with its token.
    """

    def __init__(self, model: ExploredRun, listening: socket.socket) -> None:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        self.address = f"http://{LOOPBACK}:{port}/{token}/"
        application = PageApplication(model, token, [f"{name}:{port}" for name in NAMES])
        # Werkzeug would exit if the port were in use; so it takes a socket.
        options: dict[str, Any] = {"threaded": True, "request_handler": _Handler}
        self._server = make_server(LOOPBACK, port, application, fd=listening.fileno(), **options)

    def run(self, browser: bool = True) -> None:
        """Serves until it is interrupted.

        Args:
            browser: Whether to open the page in the user's browser.
        """
        if browser:  # in a thread, since a browser in the terminal blocks
            threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True).start()
        self._server.serve_forever()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, args=(False,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    """Logs no requests, since their addresses contain the token, and reports no version."""

    def log_request(self, *_: Any) -> None:
        pass

    def version_string(self) -> str:
        return "explorer"


class PageApplication:
    """The page and its requests as a WSGI application, for a browser that knows the token.

    Addresses are `/TOKEN/`, its files `/TOKEN/NAME`, and for POST requests in JSON
    `/TOKEN/ask/NAME`. A request without the token, with another Host (such as a name that was
    rebound to this machine) or from another Origin gets status 403, an invalid one 400, and any
    other failure 500, with a line in the log. All errors are `{"error": sentence}`.

    Args:
        model: The model that answers.
        token: Secret word.
        hosts: Allowed values of the header Host, with the port.
    """

    def __init__(self, model: ExploredRun, token: str, hosts: Collection[str]) -> None:
        self._model = model
        self._token = token
        self._hosts = frozenset(hosts)
        page = importlib.resources.files(__package__) / "page"
        self._files = {entry.name: entry.read_bytes() for entry in page.iterdir()}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        request.max_content_length = MAX_BYTES
        try:
            response = self._respond(request)
        except HTTPException as error:
            response = _error(error.description or error.name, error.code or 500)
        except Exception as error:
            logging.error("The explorer could not answer: %s", _one_line(error))
            sentence = "The explorer has failed: see its terminal."
            response = _error(str(error) if isinstance(error, ValueError) else sentence, 500)
        response.headers.extend(HEADERS)
        return response(environ, start_response)

    def _respond(self, request):
        if request.headers.get("Host") not in self._hosts:
            raise Forbidden("The page is available on this machine only, at its own address.")
        origin = request.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self._hosts:
            raise Forbidden("The explorer answers requests of its own page only.")
        token, slash, name = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise Forbidden(
                "The token is missing or invalid: open the address that the command printed."
            )
        if not slash:  # the page's files have relative addresses
            return redirect(f"/{token}/", 308)
        kind, _, question = name.partition("/")
        if kind == "ask" and question in self._model.questions:
            return self._answer(request, question)
        return self._file(request, name or FIRST_FILE)

    def _file(self, request, name):
        if name not in self._files:
            raise NotFound("This file does not exist.")
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(["GET", "HEAD"])
        kind = KINDS[os.path.splitext(name)[1]]
        return Response(self._files[name], content_type=f"{kind}; charset=utf-8")

    def _answer(self, request, question):
        if request.method != "POST":
            raise MethodNotAllowed(["POST"])
        try:
            asked = request.get_json()
        except (OSError, RecursionError) as error:  # cut off, or nested too deep
            raise BadRequest("The request cannot be read as JSON.") from error
        try:
            return _json(self._model.answer(question, asked))
        except InvalidRequest as error:
            raise BadRequest(str(error)) from error


def _one_line(error):
    """An error, its cause, such as the log of a dead process, and its location."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    parts = [f"{type(error).__name__}: {error}", error.__cause__ or ""]
    text = " ".join(" ".join(map(str, parts)).split())
    return f"{text} ({os.path.basename(place.filename)}, line {place.lineno})"


def _json(value, status=200):
    return Response(json.dumps(value), status, content_type="application/json")


def _error(sentence, status):
    return _json({"error": sentence}, status)
