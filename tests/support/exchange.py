"""Exports that an environment with another TensorFlow answers with.

python -m tests.support.exchange write FOLDER     # FOLDER/<name>/1, of every kind
python -m tests.support.exchange answer FOLDER    # JSON: what they answer in this environment
python -m tests.support.exchange other            # what pip installs for the other TensorFlow
"""

import importlib.metadata
import json
import pathlib
import sys

MINORS = ("2.20", "2.21")  # of TensorFlow that setup.cfg allows
PACKAGES = ("tensorflow", "tensorflow-text", "tensorflow-serving-api", "tensorboard")
KINDS = {
    "float32": {},
    "int8": {"precision": "int8"},
    "bfloat16": {"computation": "bfloat16"},
    "wordpiece": {},
}


def write(folder):
    """Exports of letters, and of words by WordPiece, with all signatures."""
    import keras_transformer as kt
    from keras_transformer.serving.versions import SIGNATURES
    from tests.support.sample_text import LINES
    from tests.support.toy_translator import random_translator, toy_pairs, trained_translator

    words = random_translator(kt.WordPieceTokenizer.train(LINES, 125), seed=8)
    for kind, options in KINDS.items():
        translator = words if kind == "wordpiece" else trained_translator()
        config = kt.ExportConfig(signatures=tuple(SIGNATURES), **options)
        kt.export(translator, folder / kind, config=config, pairs=toy_pairs(5))


def answer(folder):
    """What is wrong with each of them, in words, and what its signatures answer, by its name."""
    from keras_transformer.serving.server_process import ServerProcess
    from keras_transformer.serving.trial import check
    from keras_transformer.serving.versions import SIGNATURES, make_inputs, read_card
    from tests.support.sample_text import LINES
    from tests.support.toy_translator import SOURCES

    found = {}
    for kind in KINDS:
        path = folder / kind / "1"
        texts = [*SOURCES, *LINES[:9]]
        with ServerProcess(path) as server:
            replies = {name: server.predict(make_inputs(name, texts), name) for name in SIGNATURES}
        found[kind] = {
            "written_by": read_card(path)["versions"]["tensorflow"],
            "problems": [problem for finding in check(path) for problem in finding.problems],
            "replies": replies,
        }
    return found


def other():
    """Requirements of the TensorFlow that this environment does not have."""
    own = importlib.metadata.version("tensorflow").rpartition(".")[0]
    (minor,) = set(MINORS) - {own}
    return [f"{package}=={minor}.*" for package in PACKAGES]


if __name__ == "__main__":
    command, *folder = sys.argv[1:]
    if command == "write":
        write(pathlib.Path(*folder))
    elif command == "answer":
        print(json.dumps(answer(pathlib.Path(*folder))))
    else:
        print(*other())
