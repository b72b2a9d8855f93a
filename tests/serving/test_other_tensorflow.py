"""What one TensorFlow that setup.cfg allows has exported, the other loads and runs.

`make ordeal` and `make test-other-tensorflow` make its environment and name it. They run this file:

python -m tests.serving.test_other_tensorflow write FOLDER     # FOLDER/<name>/1, of every kind
python -m tests.serving.test_other_tensorflow other            # what pip installs for the other
"""

import configparser
import importlib.metadata
import os
import pathlib
import sys

import pytest

import keras_transformer as kt
from keras_transformer.serving.versions import SIGNATURES, read_card
from tests.support import child_process
from tests.support.paths import ROOT
from tests.support.sample_text import LINES
from tests.support.toy_translator import random_translator, toy_pairs, trained_translator

PYTHON = os.environ.get("OTHER_TENSORFLOW")
MINORS = ("2.20", "2.21")  # of TensorFlow that setup.cfg allows
MINOR = importlib.metadata.version("tensorflow").rpartition(".")[0]
OTHER = MINORS[1 - MINORS.index(MINOR)]
PACKAGES = ("tensorflow", "tensorflow-text", "tensorflow-serving-api", "tensorboard")
KINDS = {"float32": {}, "int8": {"precision": "int8"}, "bfloat16": {"computation": "bfloat16"}}
KINDS |= {"wordpiece": {}}


def write(folder):
    words = random_translator(kt.WordPieceTokenizer.train(LINES, 125), seed=8)
    for kind, options in KINDS.items():
        translator = words if kind == "wordpiece" else trained_translator()
        config = kt.ExportConfig(signatures=tuple(SIGNATURES), **options)
        kt.export(translator, folder / kind, config=config, pairs=toy_pairs(5))


def test_all_that_has_to_be_of_one_version_has_one_range():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    parts = [config["options"]["install_requires"], *(extras[x] for x in ("all", "explore", "gpu"))]
    lines = [line.strip() for part in parts for line in part.splitlines()]
    found = [line for line in lines if line.startswith(("tensorflow", "tensorboard"))]
    assert {line.partition(">")[0] for line in found} == {*PACKAGES, "tensorflow[and-cuda]"}
    after = f"2.{int(MINORS[-1].partition('.')[2]) + 1}"
    for line in found:
        lowest, below = line.partition(">=")[2].split(",")
        assert lowest.startswith(MINORS[0]) and below == f"<{after}", line


def run(python, *words):
    done = child_process.run([python, "-m", *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.ordeal
@pytest.mark.skipif(not PYTHON, reason="OTHER_TENSORFLOW names no Python: make ordeal does")
@pytest.mark.parametrize("direction", ["out", "back"])
def test_exports_are_exchanged(direction, tmp_path):
    # Not resolved: a link to Python is what makes an environment.
    pythons = [sys.executable, os.fspath(pathlib.Path(PYTHON).absolute())]
    writer, reader = pythons if direction == "out" else pythons[::-1]
    run(writer, "tests.serving.test_other_tensorflow", "write", tmp_path)
    for kind in KINDS:
        version = read_card(tmp_path / kind / "1")["versions"]["tensorflow"]
        assert version.rpartition(".")[0] == (MINOR if direction == "out" else OTHER)
        # Asks again for what the writer has computed in memory.
        run(reader, "keras_transformer", "check", tmp_path / kind)


if __name__ == "__main__":
    command, *folder = sys.argv[1:]
    if command == "write":
        write(pathlib.Path(*folder))
    else:
        print(*(f"{package}=={OTHER}.*" for package in PACKAGES))
