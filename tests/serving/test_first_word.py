"""What is answered without waiting for TensorFlow's import."""

import subprocess
import sys

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.presets import ExportConfig
from keras_transformer.runs.load import open_translator
from keras_transformer.serving import lasting_server
from keras_transformer.serving.acceptance.server_process import read_signatures
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import export
from tests.support.toy_translator import SOURCES, trained_translator


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    return export(trained_translator(), base, config=ExportConfig(signatures=("score",)))


def without_tensorflow(code, *arguments):
    code += "\nassert not {'tensorflow', 'keras'} & set(sys.modules)"
    command = [
        sys.executable,
        "-c",
        f"import sys\nsys.argv[0] = 'keras-transformer'\n{code}",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_export_translates_without_tensorflow(exported):
    code = f"""
from keras_transformer.runs.load import open_translator
print(open_translator(sys.argv[1])({SOURCES!r}))
"""
    assert without_tensorflow(code, exported) == f"{trained_translator().translate(SOURCES)}\n"
    assert open_translator(exported)([]) == []


def test_many_sentences_have_their_graph_rewritten(exported, monkeypatch):
    monkeypatch.setattr(lasting_server, "FEW", 2)
    optimized = []

    class Observed(lasting_server.ServerProcess):
        def __init__(self, *args, optimize, **options):
            super().__init__(*args, optimize=optimize, **options)
            optimized.append(optimize)

    monkeypatch.setattr(lasting_server, "ServerProcess", Observed)
    expected = trained_translator().translate(SOURCES)
    translator = ExportedTranslator(exported)
    found = [translator.translate(SOURCES[i:j]) for i, j in [(0, 0), (0, 1), (1, 2), (2, 3)]]
    assert [*sum(found, []), *translator.translate(SOURCES[3:])] == expected
    assert optimized == [False, True]  # one process for the first two, one for all others


@pytest.mark.parametrize("name", ["beam", "sample", "attention"])
def test_a_signature_that_is_not_there_is_named_at_once(exported, name):
    """Before anything is loaded."""
    code = f"""
from keras_transformer.presets import SearchConfig
from keras_transformer.runs.load import open_model, open_translator
try:
    if "{name}" == "attention":
        open_model(sys.argv[1]).align({SOURCES!r})
    else:
        search = SearchConfig(2) if "{name}" == "beam" else SearchConfig(sample=True)
        open_translator(sys.argv[1], search)
except ValueError as error:
    print(error)
"""
    said = without_tensorflow(code, exported)
    assert f"has no signature {name}: export the run anew with {name} among --signatures" in said


@pytest.mark.parametrize("command", ["", "train", "translate", "evaluate", "export", "check"])
def test_help_texts_load_no_tensorflow(command):
    code = f"""
from keras_transformer.cli.main import main
sys.argv = ["keras-transformer", *{command.split()!r}, "--help"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    assert "usage: keras-transformer" in without_tensorflow(code)


def test_signatures_are_read_as_tensorflow_reads_them(exported, tmp_path):
    with open(f"{exported}/saved_model.pb", "rb") as file:
        content = file.read()
    (meta_graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    found = read_signatures(exported)
    assert set(found) == set(meta_graph.signature_def) >= {"serving_default", "score"}
    for name, signature in meta_graph.signature_def.items():
        inputs, outputs = found[name]
        assert inputs == {k: (t.name, t.dtype) for k, t in signature.inputs.items()}
        assert outputs == {k: (t.name, t.dtype) for k, t in signature.outputs.items()}
    for broken in (content[:-5], content[: len(content) // 2], b"", b"\xff" * 20):
        (tmp_path / "saved_model.pb").write_bytes(broken)
        assert read_signatures(tmp_path) == {}
