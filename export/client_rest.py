"""Asks TF Serving for translations over REST. Needs Python's standard library only.

    python export/client_rest.py --model dates < text

To be imported as well:

    client = RestClient("http://localhost:8501", "dates")
    client.translate(["samedi 9 mai 1998"])
    client.predict({"text": ["samedi 9 mai 1998"]}, "beam")
"""

import argparse
import base64
import http.client
import itertools
import json
import os
import queue
import random
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

LEAST_LOG_PROB = -1e9  # of a text without a translation
MAX_SHOWN = 200  # characters of an answer, in an error


class ClientError(Exception):
    """What went wrong, in one sentence."""


class RestClient:
    """A model on a server.

    Args:
        url: Of the server.
        model: Name that the server knows the model by.
        version: Number of a version; by default the server chooses.
        label: Name of a version, such as "stable", instead of its number.
        timeout: Seconds until the end of an answer, all tries together.
        retries: Times that a request is sent again while the server is unavailable (status 503, or
            nobody listens). Nothing else is tried again: it would fail again, or be done twice.
    """

    def __init__(self, url, model, version=None, label=None, timeout=30.0, retries=4):
        if not _is_url(url):
            raise ClientError(f"Expected a URL such as http://localhost:8501, received {url}.")
        if not 0 < timeout <= threading.TIMEOUT_MAX:
            raise ClientError(f"timeout must be a positive number of seconds, received {timeout}.")
        path = ["v1", "models", model]
        if version is not None:
            path += ["versions", str(version)]
        if label is not None:
            path += ["labels", label]
        quoted = "/".join(urllib.parse.quote(part, safe="") for part in path)
        self.url = f"{url.rstrip('/')}/{quoted}"
        self.timeout = timeout
        self.retries = retries

    def translate(self, texts, source_language=None, target_language=None):
        """Translates a list of strings, or of bytes, in one request.

        Args:
            texts: Of any number.
            source_language, target_language: Codes, such as "de", for a model that translates
                between several languages and has these inputs.

        Returns:
            List of strings.
        """
        if not texts:
            return []
        codes = {"source_language": source_language, "target_language": target_language}
        codes = {name: code for name, code in codes.items() if code is not None}
        reply = self.predict({"text": texts} | {name: [codes[name]] * len(texts) for name in codes})
        found = reply.get("text")
        if codes and LEAST_LOG_PROB in reply.get("log_prob", ()):
            raise ClientError(f"{self.url} knows no language {' or '.join(codes.values())}.")
        if not isinstance(found, list) or [type(x) for x in found] != [str] * len(texts):
            raise ClientError(
                f"{self.url} is not a translator: expected {len(texts)} strings as its output "
                f"text, received {_shortened(found)}."
            )
        return found

    def predict(self, inputs, signature="serving_default"):
        """Sends one request.

        Args:
            inputs: {name: list}. Bytes may be anything, strings are sent as UTF-8.
            signature: Name of what is asked for.

        Returns:
            {name: list}.

        Raises:
            ClientError: If there is no answer.
        """
        body = {"signature_name": signature, "inputs": inputs}
        body = json.dumps(body, default=_to_json).encode()
        return self._send(":predict", "outputs", dict, body)["outputs"]

    def status(self):
        """What the server says about the model's versions."""
        return self._send("", "model_version_status", list)

    def _send(self, action, key, kind, body=None):
        """Returns the answer, an object that must have a value of this kind."""
        deadline = time.monotonic() + self.timeout
        for tries in itertools.count():
            try:
                reply = self._try(action, body, deadline)
                break
            except _Unavailable as error:
                # The doubled pause, shortened at random, so that clients do not come back at once.
                pause = 0.1 * 2**tries * random.uniform(0.5, 1)
                if tries >= self.retries or time.monotonic() + pause >= deadline:
                    raise ClientError(f"{error} (tried {tries + 1} times)") from error
                time.sleep(pause)
        if not isinstance(reply, dict) or not isinstance(reply.get(key), kind):
            raise ClientError(
                f'{self.url} does not answer as TF Serving: expected JSON whose "{key}" is a '
                f"{kind.__name__}, received {_shortened(json.dumps(reply, ensure_ascii=False))}."
            )
        return reply

    def _try(self, action, body, deadline):
        """Asks once, in a thread: a socket's timeout is for a packet, not for the whole answer."""
        answers = queue.SimpleQueue()

        def ask():
            try:
                answers.put(self._ask(action, body))
            except Exception as error:
                answers.put(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            reply = answers.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            message = f"{self.url} did not answer within {self.timeout:g} seconds."
            raise ClientError(message) from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _ask(self, action, body):
        request = urllib.request.Request(f"{self.url}{action}", body)
        request.add_header("Content-Type", "application/json")
        try:
            # This timeout only ends the thread, when `_try` has given up.
            with _OPENER.open(request, timeout=self.timeout + 1) as reply:
                status, content = reply.status, reply.read()
        except urllib.error.URLError as error:
            raise _Unavailable(f"{self.url} cannot be reached: {error.reason}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ClientError(f"{self.url} broke the connection off: {error!r}") from error
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise _Unavailable(f"The server is unavailable: {_message(content)}")
        if status != http.HTTPStatus.OK:
            raise ClientError(f"The server answered {status}: {_message(content)}")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ClientError(
                f"{self.url} did not answer with JSON: {_shortened(content)}"
            ) from error


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Leaves errors to the caller, and follows no redirections, which would lose the request."""

    def http_response(self, request, response):
        return response

    https_response = http_response


_OPENER = urllib.request.build_opener(_AnyStatus)


class _Unavailable(ClientError):
    """The server may be there in a moment."""


def _message(body):
    """The sentence in an error's JSON, on one line."""
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body
    return _shortened(text) or "no reason given"


def _shortened(answer):
    """The beginning of an answer, on one line."""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _is_url(url):
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _to_json(value):
    return {"b64": base64.b64encode(value).decode()}


def batches_of(lines, size):
    """Lines of a binary file without their ends, so many at a time."""
    lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)
    while batch := list(itertools.islice(lines, size)):
        yield batch


def main():
    parser = argparse.ArgumentParser(description="Translate stdin, line by line, over REST.")
    parser.add_argument("--url", default="http://localhost:8501")
    parser.add_argument("--model", required=True, help="its name on the server")
    parser.add_argument("--version", type=int, help="a number; by default the server chooses")
    parser.add_argument("--label", help="such as stable, instead of a number")
    parser.add_argument("--source-language", help="of a model of several, such as en")
    parser.add_argument("--target-language", help="to translate into, such as de")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="lines in a request; config/ allows up to 1024"
    )
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for a whole answer")
    parser.add_argument("--retries", type=int, default=4, help="while the server is unavailable")
    options = parser.parse_args()
    if options.version is not None and options.label is not None:
        parser.error("--version and --label cannot be used together")
    if options.batch_size < 1:
        parser.error(f"--batch-size must be at least 1, received {options.batch_size}")
    try:
        client = RestClient(
            options.url,
            options.model,
            options.version,
            options.label,
            options.timeout,
            options.retries,
        )
        for batch in batches_of(sys.stdin.buffer, options.batch_size):
            languages = options.source_language, options.target_language
            for text in client.translate(batch, *languages):
                line = " ".join(text.splitlines())  # in UTF-8, as the input
                sys.stdout.buffer.write(f"{line}\n".encode(errors="replace"))
            sys.stdout.buffer.flush()
    except ClientError as error:
        sys.exit(f"client_rest.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
