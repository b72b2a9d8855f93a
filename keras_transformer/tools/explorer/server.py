"""The explorer: a page for one run, served to a browser on this machine at a secret address.

Shapes: S source length, T target length, N layers, H heads.
"""

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
from typing import Any

import numpy as np
from werkzeug.exceptions import BadRequest, Forbidden, HTTPException, NotFound
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.opening import Opened
from keras_transformer.special_ids import PAD
from keras_transformer.translation.sentences import KINDS, LEAST_LOG_PROB

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")  # of this machine, in a browser's requests
BACKLOG = 128  # waiting connections
FIRST_FILE = "index.html"
CONTENT_TYPES = {
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
MAX_EXAMPLES = 4  # one that the page translates at first, and three more
MAX_CHARACTERS = 10_000  # of a text
DIGITS = 4  # after the point, of weights
SAMPLES = 5  # per request
MAX_BEST = 20  # alternatives of each token


def listen(port: int = 0) -> socket.socket:
    """Listens on a port that only this machine can reach; 0: any free port."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ValueError(
            f"Port {port} cannot be used ({error}): choose another --port, or omit it."
        ) from error
    return listening


class ExplorerServer:
    """A page at an `address` with a token."""

    def __init__(self, model: "ExploredRun", listening: socket.socket) -> None:
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        self.address = f"http://{LOOPBACK}:{port}/{token}/"
        application = PageApplication(model, token, [f"{name}:{port}" for name in NAMES])
        # Werkzeug would exit if the port were in use; so it takes a socket.
        options: dict[str, Any] = {"threaded": True, "request_handler": _Handler}
        self.server = make_server(LOOPBACK, port, application, fd=listening.fileno(), **options)

    def run(self, browser: bool = True) -> None:
        """Serves until it is interrupted, and opens the page in the user's browser if asked to."""
        if browser:  # in a thread, since a browser in the terminal blocks
            threading.Thread(target=webbrowser.open, args=(self.address,), daemon=True).start()
        self.server.serve_forever()


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
    """

    def __init__(self, model: "ExploredRun", token: str, hosts: Collection[str]) -> None:
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
        name = name or FIRST_FILE
        if name not in self._files:
            raise NotFound("This file does not exist.")
        kind = CONTENT_TYPES[os.path.splitext(name)[1]]
        return Response(self._files[name], content_type=f"{kind}; charset=utf-8")

    def _answer(self, request, question):
        try:
            asked = request.get_json()
        except (OSError, RecursionError) as error:  # cut off, or nested too deep
            raise BadRequest("The request cannot be read as JSON.") from error
        return _json(self._model.answer(question, asked))


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


# --- the answers to the page's requests ---


class ExploredRun:
    """Answers requests of the page with dicts: `questions`, by the last segment of the address."""

    def __init__(self, opened: Opened) -> None:
        if opened.run is None:
            raise ValueError(
                f"{opened.path} is a SavedModel, which does not return all attention weights: give "
                "the run directory that it was exported from."
            )
        self._path, self._run = os.path.abspath(opened.path), opened.run
        self._translator = opened.model
        self._search = ExportConfig.for_search(self._translator.default_search).search
        self._lock = threading.Lock()  # the first question of a kind traces a graph
        self.questions = {
            "model": self._describe,
            "explore": self._explore,
            "n-best": self._translate_n_best,
            "samples": self._sample,
        }

    def answer(self, question: str, request: object) -> dict[str, Any]:
        """Answers one of `questions`."""
        if not isinstance(request, dict):
            raise BadRequest("Expected a JSON object.")
        if not self._run.has_model:
            raise ValueError(f"{self._path} is missing: restore it, or explore another model.")
        with self._lock:
            return self.questions[question](request)

    def _describe(self, request):
        """Returns the model's name, and examples to try."""
        sources = (source for source, _ in self._run.read_examples() if source.strip())
        examples = list(dict.fromkeys(sources))[:MAX_EXAMPLES]
        return {"name": os.path.basename(self._path), "examples": examples}

    def _explore(self, request):
        """Translates `text` after `prefix`, ids, with the `k` most probable tokens of each step.

        Returns:
            `text`, `log_prob`; and `source`, S strings, `steps`, for each of T tokens `{"token",
            "id", "log_prob", "best": [{"token", "id", "log_prob"}]}`, and `attention`, nested lists
            `{"encoder": (N, H, S, S), "decoder": (N, H, T, T), "cross": (N, H, T, S)}`.
        """
        import tensorflow as tf

        from keras_transformer.translation.text_model import LANGUAGES, TEXT
        from keras_transformer.translation.translator import TARGET

        text, prefix = _read_text(request), request.get("prefix", [])
        size = self._translator.model.target_vocabulary_size
        if not isinstance(prefix, list) or not all(
            type(i) is int and 0 <= i < size for i in prefix
        ):
            raise BadRequest(f"prefix must be a list of ids from 0 to {size - 1}.")
        k = min(int(_read_number(request, "k", 10, 1, MAX_BEST)), size)
        ids = [i for i in prefix if i != PAD][: self._translator.max_output_length]
        inputs = TEXT, TARGET, tf.TensorSpec([], tf.int32), LANGUAGES
        function = self._translator.compiled(_inspect, inputs, translator=self._translator)
        languages = self._translator.language_rows([text])
        found = function(tf.constant([text]), tf.constant([ids], tf.int32), k, languages)
        is_empty, found = bool(found.pop("empty")), {x: found[x].numpy() for x in found}
        if is_empty:
            empty: dict[str, Any] = {"source": [], "forced": [], "steps": []}
            return {"text": "", "log_prob": 0.0, "attention": dict.fromkeys(KINDS, [])} | empty
        steps = []
        for number in range(len(found["target"])):
            target, taken, log_prob, *best = (
                found[x][number]
                for x in ("target", "ids", "log_probs", "best", "best_ids", "best_log_probs")
            )
            alternatives = [_describe_token(*one) for one in zip(*best, strict=True)]
            steps.append(_describe_token(target, taken, log_prob) | {"best": alternatives})
        attention = {kind: np.round(found[kind].astype(np.float64), DIGITS) for kind in KINDS}
        return {
            "text": _decode(found["text"]),
            "log_prob": float(found["log_prob"]),
            "source": [_decode(token) for token in found["source"]],
            "forced": [_decode(token) for token in found["forced"]],
            "steps": steps,
            "attention": {kind: maps.tolist() for kind, maps in attention.items()},
        }

    def _translate_n_best(self, request):
        """Translates `text` by beam search: texts, log_probs and scores, the best first."""
        text = _read_text(request)
        (found,) = self._translator.translate_n_best([text], search=self._search)
        found = [one._asdict() for one in found if one.log_prob > LEAST_LOG_PROB]
        return {"translations": found}

    def _sample(self, request):
        """Samples translations of `text` with a `temperature` and a `seed`."""
        import tensorflow as tf

        from keras_transformer.translation.text_model import LANGUAGES, TEXT
        from keras_transformer.translation.translator import SEEDS

        text = _read_text(request)
        temperature = _read_number(request, "temperature", 1.0, 0.01, 100.0)
        seed = int(_read_number(request, "seed", 1, 0, 2**53))
        inputs = TEXT, SEEDS, tf.TensorSpec([None], tf.float32), LANGUAGES
        function = self._translator.compiled(_draw, inputs, translator=self._translator)
        seeds = tf.constant([seed + draw for draw in range(SAMPLES)], tf.int64)
        texts = [text] * SAMPLES
        languages = self._translator.language_rows(texts)
        found = function(texts, seeds, [temperature] * SAMPLES, languages)
        rows = zip(found["text"].numpy(), found["log_prob"].numpy(), strict=True)
        return {"translations": [{"text": _decode(x), "log_prob": float(y)} for x, y in rows]}


def _inspect(text, prefix, k, languages, translator):
    """Translates one text: tokens (S,) and (T,), the best (T, k), and attention; all at once."""
    from keras_transformer.translation.inspection import all_attention, rank_tokens

    source, empty = translator.read_source(text, languages)
    search = translator.default_search.greedy
    tokens, texts, log_prob, _ = translator.translate_ids(
        source, empty, search, languages=languages, prefix=prefix
    )
    tokens, to_pieces = tokens[:, 0], translator.target_tokenizer.pieces
    # The token of a language is input, and nothing that the model has chosen.
    first, inputs = translator.languages.num_forced, translator.begin_target(tokens, languages)
    logits, attention = all_attention(translator.model, source, inputs)
    attention |= {kind: attention[kind][..., first:, :] for kind in ("decoder", "cross")}
    log_probs, best_ids, best_log_probs = rank_tokens(logits[:, first:], tokens, k)
    found = {
        "empty": empty,
        "text": texts[:, 0],
        "log_prob": log_prob[:, 0],
        "source": translator.source_tokenizer.pieces(source),
        "forced": to_pieces(inputs[:, :first]),
        "target": to_pieces(tokens),
        "ids": tokens,
        "log_probs": log_probs,
        "best": to_pieces(best_ids),
        "best_ids": best_ids,
        "best_log_probs": best_log_probs,
    }
    return {name: value[0] for name, value in (found | attention).items()}


def _draw(text, seeds, temperature, languages, translator):
    import tensorflow as tf

    every = {"top_k": tf.zeros_like(seeds, tf.int32), "top_p": tf.ones_like(temperature)}
    every |= {"seeds": seeds, "temperature": temperature, "languages": languages}
    return translator.best(text, translator.default_search, **every)


def _describe_token(token, number, log_prob):
    return {"token": _decode(token), "id": int(number), "log_prob": float(log_prob)}


def _decode(text):
    return text.decode(errors="replace")


def _read_text(request):
    text = request.get("text")
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise BadRequest(f"text must be a string of at most {MAX_CHARACTERS} characters.")
    # JSON may contain lone surrogates, which are not characters.
    return text.encode("utf-8", "replace").decode()


def _read_number(request, name, default, minimum, maximum):
    value = request.get(name, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum:
        raise BadRequest(f"{name} must be a number from {minimum} to {maximum}.")
    return value
