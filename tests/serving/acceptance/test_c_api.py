"""An export in a server's hands: TensorFlow's C++ loader, XLA switched off, and no Python.

See c_api.py for what is run. No test here needs a server.
"""

import math

import pytest
import tensorflow as tf

from keras_transformer.serving.saved_model import export
from tests.support import stand_in_translator as stand_ins
from tests.support.serving import run_through_c_api

TEXTS = [
    "a cat",
    "the bird runs near",
    "",
    "東京 straße",
    "zebra",
    "a cat runs near the bird",
    "ran",
]
HOSTILE = [
    "   ",
    "\t\n",
    b"\x00",
    b"near\x00cat",
    b"near \xff\xfe cat",
    b"\xed\xa0\x80",  # a surrogate, which UTF-8 must not hold
    "a cat runs " * 1000,
    "\u202e\u0301\U0001f600",
    "</s><s><pad>",
    "{'b64': 1}",
]


@pytest.fixture(scope="module")
def replies(version_dir):
    """All that is asked of the server in one process: {name of the batch: reply}."""
    batches = {
        "texts": TEXTS,
        "hostile": HOSTILE,
        "none": [],
        "many": TEXTS * 10,
        "rank 0": "a cat",
        "rank 2": [["a cat", "the bird"]],
        "after errors": TEXTS,
    }
    batches |= {("alone", row): [row] for row in TEXTS + HOSTILE}
    answers = run_through_c_api(version_dir, list(batches.values()))
    return dict(zip(batches, answers, strict=True))


def answers_of(translator, texts):
    """What the translator in memory answers."""
    answers = translator.serve(tf.constant(texts, tf.string))
    return [text.decode() for text in answers["text"].numpy()], answers["log_prob"].numpy()


def test_server_gives_the_translators_answers(translator, replies):
    for name, texts in (("texts", TEXTS), ("many", TEXTS * 10), ("hostile", HOSTILE)):
        expected_texts, expected_log_probs = answers_of(translator, texts)
        assert replies[name]["text"] == expected_texts
        assert replies[name]["log_prob"] == pytest.approx(list(expected_log_probs), abs=1e-4)
    assert len(set(replies["texts"]["text"])) > 3
    assert replies["after errors"] == replies["texts"]


def test_server_takes_any_content(replies):
    reply = replies["hostile"]
    for text, log_prob in zip(reply["text"], reply["log_prob"], strict=True):
        assert isinstance(text, str)  # bytes, were it not UTF-8
        assert math.isfinite(log_prob)


@pytest.mark.parametrize("name, rows", [("texts", TEXTS), ("hostile", HOSTILE)])
def test_rows_do_not_depend_on_their_batch(replies, name, rows):
    alone = [replies["alone", row] for row in rows]
    assert replies[name]["text"] == [reply["text"][0] for reply in alone]
    expected = [reply["log_prob"][0] for reply in alone]
    assert replies[name]["log_prob"] == pytest.approx(expected, abs=1e-4)


def test_server_takes_a_batch_of_no_rows(replies):
    assert replies["none"] == {"text": [], "log_prob": []}


@pytest.mark.parametrize("name", ["rank 0", "rank 2"])
def test_wrong_rank_is_told_from_the_expected_shape(replies, name):
    assert "is not compatible with expected shape [?]" in replies[name]["error"]


def test_model_compiled_by_xla_fails_on_the_first_request(tmp_path):
    twin = stand_ins.CompiledByXla()
    signatures = {"serving_default": twin.serve.get_concrete_function()}
    tf.saved_model.save(twin, str(tmp_path), signatures=signatures)
    (reply,) = run_through_c_api(tmp_path, [["a cat"]])
    assert "XLA compilation disabled" in reply["error"]


def test_server_without_sentencepiece_ops_cannot_load(version_dir):
    with pytest.raises(ValueError, match="Op type not registered 'SentencepieceOp'"):
        run_through_c_api(version_dir, [["a cat"]], ops=False)


def test_keras_variables_reach_the_server(tmp_path):
    translator = stand_ins.HoldsKerasVariables()
    (reply,) = run_through_c_api(export(translator, tmp_path), [TEXTS])
    assert reply["text"] == answers_of(translator, TEXTS)[0]


def test_tracked_keras_layer_fails_on_the_first_request(tmp_path):
    twin = stand_ins.HoldsKerasLayer()
    signatures = {"serving_default": twin.serve.get_concrete_function()}
    tf.saved_model.save(twin, str(tmp_path), signatures=signatures)
    (reply,) = run_through_c_api(tmp_path, [["a cat"]])
    assert "Could not find variable" in reply["error"]
