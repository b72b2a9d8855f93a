"""An export in a server's hands: TensorFlow's C++ loader, XLA switched off, and no Python.

See c_api.py for what is run. No test here needs a server. Answers are compared in test_export.py.
"""

import pytest
import tensorflow as tf

from keras_transformer.serving import server_process
from tests.support import stand_in_translator as stand_ins
from tests.support.serving import run_through_c_api

TEXTS = ["a cat", "the bird runs near", "", "東京 straße", "near \x00cat", "ran"]


def save(twin, directory):
    """Saves without the checks of an export."""
    signatures = {"serving_default": twin.serve.get_concrete_function()}
    tf.saved_model.save(twin, str(directory), signatures=signatures)
    return directory


def test_wrong_ranks_name_the_expected_shape(translator, version_dir):
    batches = [TEXTS, "a cat", [["a cat", "the bird"]], TEXTS]
    before, scalar, table, after = run_through_c_api(version_dir, batches)
    for reply in (scalar, table):
        assert "is not compatible with expected shape [?]" in reply["error"]
    expected = translator.serve(tf.constant(TEXTS, tf.string))
    assert before == after
    assert before["text"] == [text.decode() for text in expected["text"].numpy()]
    assert before["log_prob"] == pytest.approx(expected["log_prob"].numpy().tolist(), abs=1e-4)


def test_server_without_sentencepiece_ops_cannot_load(version_dir, monkeypatch):
    monkeypatch.setattr(server_process, "TEXT_OPS", {})
    with pytest.raises(ValueError, match="Op type not registered 'SentencepieceOp'"):
        run_through_c_api(version_dir, [["a cat"]])


def test_keras_variables_reach_the_server(tmp_path):
    twin = stand_ins.HoldsKerasVariables()
    (reply,) = run_through_c_api(save(twin, tmp_path), [TEXTS])
    expected = twin.serve(tf.constant(TEXTS, tf.string))["text"].numpy()
    assert reply["text"] == [text.decode() for text in expected]


@pytest.mark.parametrize(
    "twin, message",
    [
        (stand_ins.CompiledByXla, "XLA compilation disabled"),
        (stand_ins.HoldsKerasLayer, "Could not find variable"),
    ],
)
def test_first_request_fails(tmp_path, twin, message):
    (reply,) = run_through_c_api(save(twin(), tmp_path), [["a cat"]])
    assert message in reply["error"]
