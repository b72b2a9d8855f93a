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
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


class ClientError(Exception):
    """What went wrong, in one sentence."""


class RestClient:
    """A model on a server.

    Args:
        url: Of the server.
        model: Name that the server knows the model by.
        version: Number of a version; by default the server chooses.
        label: Name of a version, such as "stable", instead of its number.
        timeout: Seconds that an answer may take, all tries together.
        retries: Times that a request is sent again while the server is unavailable (status 503, or
            nobody listens). Nothing else is tried again: it would fail again, or be done twice.
    """

    def __init__(self, url, model, version=None, label=None, timeout=30.0, retries=4):
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ClientError(f"Expected a URL such as http://localhost:8501, received {url}.")
        path = ["v1", "models", model]
        if version is not None:
            path += ["versions", str(version)]
        if label is not None:
            path += ["labels", label]
        quoted = "/".join(urllib.parse.quote(part, safe="") for part in path)
        self.url = f"{url.rstrip('/')}/{quoted}"
        self.timeout = timeout
        self.retries = retries

    def translate(self, texts):
        """Translates a list of strings, or of bytes, in one request.

        Returns:
            List of strings.
        """
        return self.predict({"text": texts})["text"] if texts else []

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
        return self._send(":predict", json.dumps(body, default=_to_json).encode())["outputs"]

    def status(self):
        """What the server says about the model's versions."""
        return self._send("", None)

    def _send(self, action, body):
        deadline = time.monotonic() + self.timeout
        for tries in itertools.count():
            try:
                return self._try(action, body, deadline - time.monotonic())
            except _Unavailable as error:
                # The doubled pause, shortened at random, so that clients do not come back at once.
                pause = 0.1 * 2**tries * random.uniform(0.5, 1)
                if tries == self.retries or time.monotonic() + pause >= deadline:
                    raise ClientError(f"{error} (tried {tries + 1} times)") from error
                time.sleep(pause)

    def _try(self, action, body, seconds):
        request = urllib.request.Request(f"{self.url}{action}", body)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=max(seconds, 0.001)) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                message = _message(error.read())
            if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise _Unavailable(f"The server is unavailable: {message}") from error
            raise ClientError(f"The server answered {error.code}: {message}") from error
        except TimeoutError as error:
            raise self._too_slow() from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._too_slow() from error
            raise _Unavailable(f"{self.url} cannot be reached: {error.reason}") from error
        except (ConnectionError, http.client.HTTPException) as error:
            raise ClientError(f"{self.url} broke the connection off: {error!r}") from error
        except ValueError as error:
            raise ClientError(f"{self.url} did not answer with JSON: {error}") from error

    def _too_slow(self):
        return ClientError(f"{self.url} did not answer within {self.timeout:g} seconds.")


class _Unavailable(ClientError):
    """The server may be there in a moment."""


def _message(body):
    """The sentence in an error's JSON, on one line."""
    try:
        text = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")
    return " ".join(str(text).split()) or "no reason given"


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
    parser.add_argument("--batch-size", type=int, default=32, help="lines in a request")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for a request")
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
            for text in client.translate(batch):
                print(" ".join(text.splitlines()), flush=True)
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
