"""What one TensorFlow that setup.cfg allows has exported, the other loads and runs.

`make ordeal` and `make test-other-tensorflow` make its environment and name it. Each of them runs

python -m tests.serving.test_other_tensorflow write FOLDER     # FOLDER/<name>/1, of every kind
python -m tests.serving.test_other_tensorflow answer FOLDER    # JSON: what they answer there
python -m tests.serving.test_other_tensorflow other            # what pip installs for the other
"""

import configparser
import importlib.metadata
import json
import os
import pathlib
import sys

import pytest

import keras_transformer as kt
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.trial import _is_close, check
from keras_transformer.serving.versions import SIGNATURES, make_inputs, read_card
from tests.support import child_process
from tests.support.paths import ROOT
from tests.support.sample_text import LINES
from tests.support.toy_translator import SOURCES, random_translator, toy_pairs, trained_translator

PYTHON = os.environ.get("OTHER_TENSORFLOW")
MINORS = ("2.20", "2.21")  # of TensorFlow that setup.cfg allows
PACKAGES = ("tensorflow", "tensorflow-text", "tensorflow-serving-api", "tensorboard")
KINDS = {"float32": {}, "int8": {"precision": "int8"}, "bfloat16": {"computation": "bfloat16"}}
KINDS["wordpiece"] = {}


def write(folder):
    words = random_translator(kt.WordPieceTokenizer.train(LINES, 125), seed=8)
    for kind, options in KINDS.items():
        translator = words if kind == "wordpiece" else trained_translator()
        config = kt.ExportConfig(signatures=tuple(SIGNATURES), **options)
        kt.export(translator, folder / kind, config=config, pairs=toy_pairs(5))


def answer(folder):
    """What is wrong with each of them, in words, and what its signatures answer, by its name."""
    found = {}
    for kind in KINDS:
        path, texts = folder / kind / "1", [*SOURCES, *LINES[:9]]
        with ServerProcess(path) as server:
            replies = {name: server.predict(make_inputs(name, texts), name) for name in SIGNATURES}
        found[kind] = {
            "written_by": read_card(path)["versions"]["tensorflow"],
            "problems": [problem for finding in check(path) for problem in finding.problems],
            "replies": replies,
        }
    return found


def exchange(python, command, folder):
    arguments = [python, "-m", "tests.serving.test_other_tensorflow", command, folder]
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


if __name__ == "__main__":
    command, *folder = sys.argv[1:]
    if command == "write":
        write(pathlib.Path(*folder))
    elif command == "answer":
        print(json.dumps(answer(pathlib.Path(*folder))))
    else:
        minor = importlib.metadata.version("tensorflow").rpartition(".")[0]
        (other,) = set(MINORS) - {minor}
        print(*(f"{package}=={other}.*" for package in PACKAGES))
