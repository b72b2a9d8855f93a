"""An export in a server's hands: TensorFlow's C++ loader, XLA switched off, and no Python."""

import io
import math
import os
import pathlib
import shutil
from unittest import mock

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from keras_transformer.serving import server_process
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import load_saved_model
from keras_transformer.serving.server_process import ENVIRONMENT, TEXT_OPS, ServerProcess
from tests.support import child_process
from tests.support import stand_in_translator as stand_ins
from tests.support.paths import FIXTURES, SUPPORT
from tests.support.sample_text import BYTES, TEXTS
from tests.support.sealing import reseal
from tests.support.toy_translator import SOURCES, toy_pairs

PLAIN = FIXTURES / "format-1" / "export" / "1"  # of serving_default alone
TENSORFLOW = pathlib.Path(tf.__file__).parent
MOST_MEMORY = 1 << 20  # KiB, nearly half of it TensorFlow's own libraries
LONG = [b"a" * 100_000, "\u6771 ".encode() * 25_000, "\U0001f468\u200d".encode() * 9000]


def read_proc(server, name):
    return pathlib.Path(f"/proc/{server._process.pid}/{name}").read_text()


@hypothesis.example([text.encode() for text in TEXTS] + BYTES + LONG)
@hypothesis.example([])
@hypothesis.given(st.lists(st.binary(max_size=60) | st.text(max_size=60).map(str.encode)))
def test_any_text_is_answered_by_text(server, texts):
    """Or by an empty line; and alone as with others."""
    reply = server.predict(texts)
    assert len(reply["text"]) == len(reply["log_prob"]) == len(texts)
    assert all(isinstance(text, str) for text in reply["text"])  # bytes, were it not UTF-8
    assert all(math.isfinite(log_prob) and log_prob <= 0 for log_prob in reply["log_prob"])
    if texts:
        alone = server.predict(texts[-1:])
        assert alone["text"] == reply["text"][-1:]
        assert alone["log_prob"] == pytest.approx(reply["log_prob"][-1:], abs=1e-3)
    assert int(read_proc(server, "status").partition("VmHWM:")[2].split()[0]) < MOST_MEMORY


def test_requests_that_do_not_fit(server):
    for inputs, message in (
        ([["a", "b"], ["c"]], "must all have the same length"),
        ([1.5], "cannot hold [1.5]"),
        ({"texts": ["a"]}, "Expected the inputs ['text'], got ['texts']"),
        ("a", "is not compatible with expected shape [?]"),
    ):
        assert message in server.predict(inputs)["error"]
    assert server.predict({"source": ["a"]}, "other") == {"error": "Unknown signature other."}


def test_many_threads_give_the_serial_answers():
    texts = [source for source, _ in toy_pairs(128, seed=4)]
    requests = [(texts[i : i + 1 + i % 7], "serving_default") for i in range(0, 120, 4)]
    with ServerProcess(PLAIN, threads=16) as server:
        serial = [server.predict(*request) for request in requests]
        parallel = server.predict_all(requests)
    for one, other in zip(serial, parallel, strict=True):
        assert one["text"] == other["text"]
        np.testing.assert_allclose(one["log_prob"], other["log_prob"], rtol=0, atol=1e-4)


def test_an_interrupted_request_is_not_answered_later(monkeypatch):
    """The next request got the answer to the one before; `predict_all` waited for ever."""
    requests = [([source] * 500, "serving_default") for source in SOURCES * 20]
    with ServerProcess(PLAIN) as server:
        interrupted = mock.Mock(**{"readline.side_effect": KeyboardInterrupt})
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(server, "_replies", interrupted)
            server.predict_all(requests)
        with pytest.raises(RuntimeError, match="ended with status -9"):
            server.predict(SOURCES)


def test_a_process_that_ends_within_a_reply():
    """Its own end is named, not the JSON that it left."""
    with ServerProcess(PLAIN) as server:
        server._process.kill()
        server._replies.close()
        server._replies = io.BytesIO(b'{"outputs": {"te')
        with pytest.raises(RuntimeError, match="ended with status -9 .killed, perhaps for its mem"):
            server.predict(["a"])


def test_native_death_is_one_sentence(tmp_path, monkeypatch):
    export, dying = reseal(shutil.copytree(PLAIN, tmp_path / "export")), tmp_path / "dying.py"
    dying.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(server_process, "PROGRAM", str(dying))
    for use in (load_saved_model, lambda path: ExportedTranslator(path).translate(["a"])):
        with pytest.raises(ValueError, match="ended with status -11") as error:
            use(export)
        assert "\n" not in str(error.value)


def test_the_process_is_configured_as_a_server_with_the_limits_of_the_machine():
    with ServerProcess(PLAIN, limited=True) as server:
        variables = read_proc(server, "environ").split("\0")
        lines = read_proc(server, "limits").splitlines()
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(variables)
    limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
    assert int(limits["Max data size"]) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 3600 <= int(limits["Max cpu time"]) < 4000


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return stand_ins.save(stand_ins.CompiledByXla(), tmp_path_factory.mktemp("compiled"))


def test_a_model_compiled_by_xla_fails_when_it_is_asked(compiled):
    with ServerProcess(compiled) as server:
        assert "XLA compilation disabled" in server.predict(["a cat"])["error"]


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("there is no g++ on this machine")
    program = tmp_path_factory.mktemp("loader") / "loader"
    include = TENSORFLOW / "include"
    command = ["g++", "-std=c++17", "-O0", "-w", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    command += ["-DEIGEN_MAX_ALIGN_BYTES=64", "-isystem", include, "-isystem"]
    command += [include / "external/com_google_protobuf/src", SUPPORT / "loader.cc", "-o", program]
    command += [f"-L{TENSORFLOW}", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command += [f"-Wl,-rpath,{TENSORFLOW}", "-Wl,--no-as-needed"]
    child_process.run([os.fspath(part) for part in command], check=True)
    return program


def load(loader, version_dir):
    command = [loader, version_dir, TENSORFLOW.parent / next(iter(TEXT_OPS)), "serving_default"]
    lines = "".join(f"{text}\n" for text in SOURCES).encode()
    return child_process.run(command, input=lines, capture_output=True, cwd="/")


@pytest.mark.slow  # of which most is compiling
def test_cpp_loader_answers_as_in_memory(loader, compiled, toy_version, translator):
    done = load(loader, toy_version)
    assert done.returncode == 0, done.stderr
    # A character vocabulary may write line ends, so rows end where a log-probability does.
    found = [part.rsplit(b"\t", 1) for part in done.stdout.split(b"\n")[:-1] if b"\t" in part]
    outputs = translator.serve(tf.constant(SOURCES))
    texts = outputs["text"].numpy()
    assert [text for text, _ in found] == [x.split(b"\n")[-1].split(b"\x00")[0] for x in texts]
    values = [float(value) for _, value in found]
    assert values == pytest.approx(outputs["log_prob"].numpy().tolist(), abs=1e-4)
    done = load(loader, compiled)
    assert done.returncode == 1 and b"XLA compilation disabled" in done.stderr
