"""The explorer's page and its questions as a WSGI application, for one browser on this machine."""

import hmac
import importlib.resources
import json
import logging
import os
import traceback
from collections.abc import Collection, Iterable
from typing import Any

from werkzeug.exceptions import (
    BadRequest,
    Forbidden,
    HTTPException,
    MethodNotAllowed,
    NotFound,
)
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from keras_transformer.visualization.explorer.questions import (
    QUESTIONS,
    InvalidRequest,
    Model,
    answer,
)

FIRST_FILE = "index.html"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
MOST_BYTES = 2**17  # of a question
# Nothing of another host, no script or style but the page's own files, in no frame of another page.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # which would tell the token
    "Cache-Control": "no-store",
}


class PageApplication:
    """Answers a browser that knows the token, and asks by this machine's name from its own page.

    Addresses are `/TOKEN/`, its files `/TOKEN/NAME`, and questions, POSTed as JSON,
    `/TOKEN/ask/NAME`. Whatever comes without the token, under another Host (as of a name that
    somebody has rebound to this machine) or from another Origin is refused with status 403; a
    request that cannot be read is status 400, and whatever else fails 500, with a line in the log.
    All errors are `{"error": sentence}`.

    Args:
        model: What is asked.
        token: Secret word.
        hosts: What the header Host may be, with the port.
    """

    def __init__(self, model: Model, token: str, hosts: Collection[str]) -> None:
        self._model = model
        self._token = token
        self._hosts = frozenset(hosts)
        page = importlib.resources.files(__package__) / "page"
        self._files = {entry.name: entry.read_bytes() for entry in page.iterdir()}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        request.max_content_length = MOST_BYTES
        try:
            response = self._respond(request)
        except HTTPException as error:
            response = _error(error.description or error.name, error.code or 500)
        except Exception as error:
            logging.error("The explorer could not answer: %s", _one_line(error))
            sentence = "The explorer met with an error, which its terminal shows."
            response = _error(str(error) if isinstance(error, ValueError) else sentence, 500)
        response.headers.extend(HEADERS)
        return response(environ, start_response)

    def _respond(self, request):
        if request.headers.get("Host") not in self._hosts:
            raise Forbidden("The page is open to this machine only, under its own address.")
        origin = request.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self._hosts:
            raise Forbidden("The page answers no other page.")
        token, slash, name = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise Forbidden("The address lacks its token: open the one that the command printed.")
        if not slash:  # the page's files would be looked for beside it
            return redirect(f"/{token}/", 308)
        kind, _, question = name.partition("/")
        if kind == "ask" and question in QUESTIONS:
            return self._answer(request, question)
        return self._file(request, name or FIRST_FILE)

    def _file(self, request, name):
        if name not in self._files:
            raise NotFound("There is no such file.")
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
            return _json(answer(self._model, question, asked))
        except InvalidRequest as error:
            raise BadRequest(str(error)) from error


def _one_line(error):
    """An error with its cause, such as the log of a process that has died, and its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    parts = [f"{type(error).__name__}: {error}", error.__cause__ or ""]
    text = " ".join(" ".join(map(str, parts)).split())
    return f"{text} ({os.path.basename(place.filename)}, line {place.lineno})"


def _json(value, status=200):
    return Response(json.dumps(value), status, content_type="application/json")


def _error(sentence, status):
    return _json({"error": sentence}, status)
