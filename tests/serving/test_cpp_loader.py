"""An export in the hands of the C++ loader that TF Serving calls, in a program without Python."""

import os
import pathlib
import shutil

import pytest
import tensorflow as tf

from keras_transformer.serving.server_process import TEXT_OPS
from tests.support import child_process
from tests.support import stand_in_translator as stand_ins
from tests.support.paths import SUPPORT
from tests.support.toy_translator import SOURCES, trained_translator

SOURCE = SUPPORT / "loader.cc"
TENSORFLOW = pathlib.Path(tf.__file__).parent
OPS = TENSORFLOW.parent / next(iter(TEXT_OPS))

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++ on this machine")


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    """The program, compiled against the headers and libraries of the installed wheel."""
    program = tmp_path_factory.mktemp("loader") / "loader"
    include = TENSORFLOW / "include"
    command = ["g++", "-std=c++17", "-O0", "-w", "-D_GLIBCXX_USE_CXX11_ABI=1"]
    command += ["-DEIGEN_MAX_ALIGN_BYTES=64", "-isystem", include]
    command += ["-isystem", include / "external/com_google_protobuf/src", SOURCE, "-o", program]
    command += [f"-L{TENSORFLOW}", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2"]
    command += [f"-Wl,-rpath,{TENSORFLOW}", "-Wl,--no-as-needed"]
    child_process.run([os.fspath(part) for part in command], check=True)
    return program


def run(loader, version_dir, signature="serving_default", texts=SOURCES):
    lines = "".join(f"{text}\n" for text in texts)
    command = [loader, version_dir, OPS, signature]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    return child_process.run(
        command, input=lines.encode(), capture_output=True, cwd="/", env=environment
    )


def test_translations_are_those_in_memory(loader, toy_version):
    done = run(loader, toy_version)
    assert done.returncode == 0, done.stderr
    # A character vocabulary may write line ends, so rows end where a log-probability does.
    found = [part.rsplit(b"\t", 1) for part in done.stdout.split(b"\n")[:-1] if b"\t" in part]
    outputs = trained_translator().serve(tf.constant(SOURCES))
    assert [text for text, _ in found] == [
        text.split(b"\n")[-1].split(b"\x00")[0] for text in outputs["text"].numpy()
    ]
    values = [float(value) for _, value in found]
    assert values == pytest.approx(outputs["log_prob"].numpy().tolist(), abs=1e-4)


def test_model_compiled_by_xla_fails(loader, tmp_path):
    """The loader judges as the server does: such a model loads, and fails on its first request."""
    twin = stand_ins.CompiledByXla()
    signatures = {"serving_default": twin.serve.get_concrete_function()}
    tf.saved_model.save(twin, str(tmp_path), signatures=signatures)
    done = run(loader, tmp_path)
    assert done.returncode == 1 and b"XLA compilation disabled" in done.stderr
