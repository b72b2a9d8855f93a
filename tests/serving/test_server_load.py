"""One loaded version under load: many threads, and texts that nobody would write."""

import math
import random

import numpy as np
import pytest

from keras_transformer.serving.server_process import ServerProcess
from tests.support.toy_translator import SOURCES, toy_pairs, trained_translator

MOST_MEMORY = 1 << 20  # KiB, nearly half of it TensorFlow's own libraries


def test_64_threads_get_the_serial_answers(toy_version):
    texts = [source for source, _ in toy_pairs(512, seed=4)]
    requests = [
        (texts[i : i + 4], ("serving_default", "beam")[i // 4 % 2]) for i in range(0, 512, 4)
    ]
    with ServerProcess(toy_version) as server:
        serial = [server.predict(*request) for request in requests]
    with ServerProcess(toy_version, threads=64) as server:
        parallel = server.predict_all(requests)
    assert len(parallel) == 128
    for one, other in zip(serial, parallel, strict=True):
        assert one["text"] == other["text"]
        np.testing.assert_allclose(one["log_prob"], other["log_prob"], rtol=0, atol=1e-4)


class Interrupted:
    def readline(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["predict", "predict_all"])
def test_an_interrupted_request_is_not_answered_later(toy_version, method, monkeypatch):
    """The next request got the answer to the one before; `predict_all` waited for ever."""
    requests = [([source] * 500, "serving_default") for source in SOURCES * 20]
    arguments = requests[0] if method == "predict" else [requests]
    with ServerProcess(toy_version) as server:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(server, "_replies", Interrupted())
            getattr(server, method)(*arguments)
        with pytest.raises(RuntimeError, match="ended with status -9"):
            server.predict(SOURCES)


def hostile_texts(count):
    """Byte strings of every kind that has ever broken a text pipeline."""
    generator = random.Random(1)
    scripts = [(0x20, 0x7E), (0x590, 0x6FF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF), (0x300, 0x36F)]
    marks = "\u200b\u200d\u202e\u2066\ufeff\u2028\x00\x1b\r\n\t\ufffd"

    def text():
        kind = generator.randrange(8)
        length = generator.randrange(60)
        if kind == 0:
            return generator.randbytes(length)
        if kind == 1:
            return "".join(generator.choice(marks) for _ in range(length)).encode()
        if kind == 2:
            return generator.choice(
                [b"", b" ", b"\x00", b"</s>", b"\xff", b"\xed\xa0\x80", b"\xf0"]
            )
        if kind == 3:
            return "\U0001f468\u200d\U0001f469\u200d\U0001f467".encode() * length
        low, high = generator.choice(scripts)
        return "".join(chr(generator.randint(low, high)) for _ in range(length)).encode()

    long = [b"a" * 100_000, "\u6771 ".encode() * 25_000, generator.randbytes(100_000)]
    return long + [text() for _ in range(count - len(long))]


@pytest.mark.slow
def test_10000_hostile_texts_within_bounds(toy_version):
    texts = hostile_texts(10_000)
    random.Random(2).shuffle(texts)
    with ServerProcess(toy_version) as server:
        for start in range(0, len(texts), 64):
            batch = texts[start : start + 64]
            reply = server.predict(batch)
            assert len(reply["text"]) == len(reply["log_prob"]) == len(batch)
            assert all(isinstance(text, str) for text in reply["text"])  # bytes, if not UTF-8
            assert all(map(math.isfinite, reply["log_prob"]))
        assert server.predict(SOURCES)["text"] == trained_translator().translate(SOURCES)
        with open(f"/proc/{server._process.pid}/status") as file:
            assert int(file.read().partition("VmHWM:")[2].split()[0]) < MOST_MEMORY
