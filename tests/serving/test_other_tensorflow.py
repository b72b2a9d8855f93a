"""What one TensorFlow that setup.cfg allows has exported, the other loads and runs.

`make ordeal` and `make test-other-tensorflow` make its environment and name it.
"""

import configparser
import json
import os
import pathlib
import sys

import pytest

from keras_transformer.serving.trial import _is_close
from tests.support import child_process
from tests.support.exchange import KINDS, MINORS, PACKAGES
from tests.support.paths import ROOT

PYTHON = os.environ.get("OTHER_TENSORFLOW")


def exchange(python, command, folder):
    arguments = [python, "-m", "tests.support.exchange", command, folder]
    done = child_process.run(arguments, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_versions_are_those_of_the_package():
    """One range for all that has to be of one version."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    lines = f"{config['options']['install_requires']}\n{extras['all']}\n{extras['explore']}"
    lines = [line.strip() for line in f"{lines}\n{extras['gpu']}".splitlines()]
    found = [line for line in lines if line.startswith(("tensorflow", "tensorboard"))]
    assert {line.partition(">")[0] for line in found} == {*PACKAGES, "tensorflow[and-cuda]"}
    after = f"2.{int(MINORS[-1].partition('.')[2]) + 1}"
    for line in found:
        lowest, below = line.partition(">=")[2].split(",")
        assert lowest.startswith(MINORS[0]) and below == f"<{after}", line


@pytest.mark.ordeal
@pytest.mark.skipif(not PYTHON, reason="OTHER_TENSORFLOW names no Python: make ordeal does")
@pytest.mark.parametrize("direction", ["out", "back"])
def test_exports_are_exchanged(direction, tmp_path):
    # Not resolved: a link to Python is what makes an environment.
    pythons = [sys.executable, os.fspath(pathlib.Path(PYTHON).absolute())]
    writer, reader = pythons if direction == "out" else pythons[::-1]
    exchange(writer, "write", tmp_path)
    own, foreign = (json.loads(exchange(x, "answer", tmp_path)) for x in (writer, reader))
    versions = {kind["written_by"].rpartition(".")[0] for kind in own.values()}
    assert len(versions) == 1 and versions <= set(MINORS)
    for kind in KINDS:
        assert foreign[kind]["problems"] == []
        for name, reply in own[kind]["replies"].items():
            other = foreign[kind]["replies"][name]
            assert reply.keys() == other.keys() and "error" not in reply, name
            if kind != "bfloat16":  # in which ties may be decided otherwise
                assert all(_is_close(reply[key], other[key]) for key in reply), name
