"""An export that translates while lines come in: one process for all of them."""

import os
import signal
import subprocess
import sys

import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.serving.exported_translator import ExportedTranslator, PersistentServer
from tests.support.toy_translator import SOURCES, trained_translator

DRAWN = SearchConfig(sample=True, temperature=1.5, seed=7)


def test_lines_come_out_before_the_last_one_is_read(toy_version):
    """And nothing is said when whoever reads them has left."""
    expected = trained_translator().translate(SOURCES)
    command = [sys.executable, "-m", "keras_transformer", "translate", toy_version]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        for start, end in ((0, 1), (1, 4), (4, 5)):
            process.stdin.write("".join(f"{line}\n" for line in SOURCES[start:end]).encode())
            process.stdin.flush()
            for line in expected[start:end]:
                assert process.stdout.readline().decode() == f"{line}\n"
        process.stdout.close()
        process.stdin.write(b"abc\n")
        process.stdin.flush()  # and left open
        assert process.wait() == 0 and process.stderr.read() == b""


def test_draws_follow_from_the_numbers_of_lines(toy_version):
    exported = ExportedTranslator(toy_version)
    whole = trained_translator().translate(SOURCES, search=DRAWN)
    parts = [(0, 3), (3, 4), (4, 10)]
    found = [exported.translate(SOURCES[i:j], search=DRAWN, first=i) for i, j in parts]
    assert sum(found, []) == whole


def test_a_process_that_has_died_is_replaced(toy_version):
    server = PersistentServer(toy_version)
    requests = [({"text": [source] * 3}, "serving_default") for source in SOURCES]
    expected = server.predict_all(requests, 30)
    process = server._run.__self__._process
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="ended with status -9"):
        server.predict_all(requests, 30)
    assert [x["text"] for x in server.predict_all(requests, 30)] == [x["text"] for x in expected]
    process = server._run.__self__._process
    del server
    assert process.poll() == 0  # has ended
