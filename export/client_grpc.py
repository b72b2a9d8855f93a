"""Asks TF Serving for translations over gRPC. Needs the package tensorflow-serving-api.

    python export/client_grpc.py --model dates < text

To be imported as well:

    with GrpcClient("localhost:8500", "dates") as client:
        client.translate(["samedi 9 mai 1998"])
        client.predict({"text": ["samedi 9 mai 1998"]}, "beam")
"""

import argparse
import itertools
import json
import os
import random
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc  # noqa: E402

LEAST_LOG_PROB = -1e9  # of a text without a translation
LARGEST_MESSAGE = 64 << 20  # bytes; gRPC's own limit is 4 MiB
# By itself gRPC sends everything to the first address that answers.
TAKE_TURNS = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


class ClientError(Exception):
    """What went wrong, in one sentence."""


class GrpcClient:
    """A model on a server.

    Args:
        address: Host and port. A name that stands for several servers, such as a headless Service's
            in Kubernetes, "dns:///translator-grpc:8500", has them asked in turn.
        model: Name that the server knows the model by.
        version: Number of a version; by default the server chooses.
        label: Name of a version, such as "stable", instead of its number.
        timeout: Seconds until the end of an answer, all tries together.
        retries: Times that a request is sent again while the server is unavailable. Nothing else
            is tried again: it would fail again, or be done twice.
    """

    def __init__(self, address, model, version=None, label=None, timeout=30.0, retries=4):
        if not 0 < timeout <= threading.TIMEOUT_MAX:
            raise ClientError(f"timeout must be a positive number of seconds, received {timeout}.")
        self.address = address
        self.model = model
        self.version = version
        self.label = label
        self.timeout = timeout
        self.retries = retries
        options = [
            ("grpc.max_send_message_length", LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.service_config", TAKE_TURNS),
            ("grpc.enable_retries", 0),  # one place decides what is tried again: `_send`
        ]
        self._channel = grpc.insecure_channel(address, options)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

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
        rows = [text.encode(errors="replace") if isinstance(text, str) else text for text in texts]
        codes = {"source_language": source_language, "target_language": target_language}
        codes = {name: code for name, code in codes.items() if code is not None}
        reply = self.predict({"text": rows} | {name: [codes[name]] * len(rows) for name in codes})
        found = reply.get("text")
        if codes and LEAST_LOG_PROB in reply.get("log_prob", ()):
            languages = " or ".join(codes.values())
            raise ClientError(f"{self.model} at {self.address} knows no language {languages}.")
        if found is None or found.dtype != object or found.shape != (len(rows),):
            received = "none" if found is None else f"{found.dtype} {list(found.shape)}"
            raise ClientError(
                f"{self.model} at {self.address} is not a translator: expected {len(rows)} strings "
                f"as its output text, received {received}."
            )
        return [text.decode(errors="replace") for text in found.tolist()]

    def predict(self, inputs, signature="serving_default"):
        """Sends one request.

        Args:
            inputs: {name: list or array}; integers are sent as int32, unless an array says
                otherwise, floats as float32.
            signature: Name of what is asked for.

        Returns:
            {name: array}; strings as bytes.

        Raises:
            ClientError: If there is no answer.
        """
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = signature
        if self.version is not None:
            request.model_spec.version.value = self.version
        if self.label is not None:
            request.model_spec.version_label = self.label
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        reply = self._send(request)
        return {name: tf.make_ndarray(tensor) for name, tensor in reply.outputs.items()}

    def _send(self, request):
        deadline = time.monotonic() + self.timeout
        for tries in itertools.count():
            try:
                return self._stub.Predict(request, timeout=max(deadline - time.monotonic(), 0.001))
            except grpc.RpcError as error:
                code = error.code()
                reason = " ".join((error.details() or "no reason given").split())
                if code == grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise ClientError(
                        f"{self.address} did not answer within {self.timeout:g} seconds."
                    ) from error
                if code != grpc.StatusCode.UNAVAILABLE:
                    raise ClientError(f"The server answered {code.name}: {reason}") from error
                # The doubled pause, shortened at random, so that clients do not come back at once.
                pause = 0.1 * 2**tries * random.uniform(0.5, 1)
                if tries >= self.retries or time.monotonic() + pause >= deadline:
                    raise ClientError(
                        f"{self.address} is unavailable: {reason} (tried {tries + 1} times)"
                    ) from error
                time.sleep(pause)


def batches_of(lines, size):
    """Lines of a binary file without their ends, so many at a time."""
    lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in lines)
    while batch := list(itertools.islice(lines, size)):
        yield batch


def main():
    parser = argparse.ArgumentParser(description="Translate stdin, line by line, over gRPC.")
    parser.add_argument("--address", default="localhost:8500", help="[dns:///]host:port")
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
        with GrpcClient(
            options.address,
            options.model,
            options.version,
            options.label,
            options.timeout,
            options.retries,
        ) as client:
            for batch in batches_of(sys.stdin.buffer, options.batch_size):
                languages = options.source_language, options.target_language
                for text in client.translate(batch, *languages):
                    line = " ".join(text.splitlines())  # in UTF-8, as the input
                    sys.stdout.buffer.write(f"{line}\n".encode(errors="replace"))
                sys.stdout.buffer.flush()
    except (ClientError, ValueError) as error:  # such as a version that is no int64
        sys.exit(f"client_grpc.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
