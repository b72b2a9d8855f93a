"""Signatures of an export, asked the way a server is; see test_exported_translator.py as well."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.presets import ExportConfig
from keras_transformer.serving.saved_model import export
from keras_transformer.serving.server_process import ENVIRONMENT, ServerProcess
from keras_transformer.serving.versions import check_names, make_inputs
from tests.support.toy_translator import SOURCES, trained_translator

CONFIG = ExportConfig()
HOSTILE_NUMBERS = [0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e-30, 3.4e38]


@pytest.fixture(scope="module")
def translator():
    return trained_translator()


@pytest.fixture(scope="module")
def server(toy_version):
    with ServerProcess(toy_version) as process:
        yield process


def test_the_process_is_configured_as_a_server(server):
    with open(f"/proc/{server._process.pid}/environ", encoding="utf-8") as file:
        variables = file.read().split("\0")
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(variables)


def test_score_cuts_a_target_that_is_too_long(server):
    reply = server.predict({"source": ["abc"], "target": ["A" * 1000]}, "score")
    assert reply["tokens"] == [12] and np.isfinite(reply["log_prob"][0])


def test_a_source_that_is_too_long_is_answered_as_its_first_tokens(server):
    whole = [4 + k % 5 for k in range(24)]
    assert server.predict([whole], "tokens") == server.predict([whole[:11]], "tokens")
    texts = ["abcdefgh" * 9, "abcdefgh" * 5 + "hgf"]
    assert len(set(server.predict(texts)["text"])) == 1


def sample(server, texts, **values):
    inputs = make_inputs("sample", texts) | values
    return server.predict(inputs, "sample")


def test_one_token_to_choose_from_is_greedy_search(server):
    rows = len(SOURCES)
    greedy, reply = server.predict(SOURCES), sample(server, SOURCES, top_k=[1] * rows)
    assert reply["text"] == greedy["text"]
    assert sample(server, SOURCES, temperature=[0.0] * rows)["text"] == greedy["text"]
    assert sample(server, SOURCES, top_p=[0.0] * rows)["text"] == greedy["text"]


def test_samples_depend_on_their_own_row_only(server):
    texts = ["abc"] * 40
    seeds = [7, 8] * 20
    reply = sample(server, texts, seed=seeds, temperature=[1.5] * 40)
    assert len({(seed, text) for seed, text in zip(seeds, reply["text"], strict=True)}) == 2
    alone = sample(server, ["abc"], seed=[8], temperature=[1.5])
    assert alone["text"][0] == reply["text"][1]
    many = sample(server, texts, seed=list(range(40)), temperature=[1.5] * 40)
    assert len(set(many["text"])) > 5


def test_values_of_a_batch_may_differ(server):
    """Rows with settings of their own answer as they would alone: requests can be joined."""
    rows = {
        "temperature": [0.5, 1.0, 2.0, 1.0],
        "top_k": [0, 2, 5, 0],
        "top_p": [1.0, 0.9, 1.0, 0.3],
        "seed": [1, 2, 3, -(2**62)],
    }
    together = sample(server, ["abc", "hgf", "cafe", "abc"], **rows)
    for i, text in enumerate(["abc", "hgf", "cafe", "abc"]):
        alone = sample(server, [text], **{key: values[i : i + 1] for key, values in rows.items()})
        assert alone["text"][0] == together["text"][i]


@pytest.mark.parametrize("key", ["temperature", "top_p"])
def test_sampling_takes_any_number(server, key):
    reply = sample(server, ["abc"] * 7, **{key: HOSTILE_NUMBERS})
    assert len(reply["text"]) == 7 and np.isfinite(reply["log_prob"]).all()
    ks = [-5, 0, 1, 10**6, 2**31 - 1, -(2**31), 3]
    assert np.isfinite(sample(server, ["abc"] * 7, top_k=ks)["log_prob"]).all()


def test_sampling_wants_a_value_for_each_text(server):
    reply = sample(server, ["abc", "a"], temperature=[1.0])
    assert "There must be one temperature for each text" in reply["error"]


@pytest.mark.parametrize("rows", [(1, 2), (1, 0), (0, 1), (3, 2)])
def test_score_wants_a_target_for_each_source(server, rows):
    sources, targets = (["abc"] * number for number in rows)
    reply = server.predict({"source": sources, "target": targets}, "score")
    assert "There must be one target for each source" in reply["error"]


def test_attention_is_the_models(translator, server):
    reply = server.predict(SOURCES, "attention")
    assert reply["text"] == server.predict(SOURCES)["text"]
    model = translator.model
    for i, source in enumerate(SOURCES):
        sources = [token for token in reply["source_tokens"][i] if token]
        targets = [token for token in reply["target_tokens"][i] if token]
        weights = np.array(reply["attention"][i])
        assert weights.shape == (len(reply["target_tokens"][0]), len(reply["source_tokens"][0]))
        assert not weights[len(targets) :].any() and not weights[:, len(sources) :].any()
        if not source:
            assert not sources and not targets
            continue
        assert sources[-1] == "</s>" and "".join(sources[:-1]).replace("\u2581", "") == source
        ids, _ = translator.read_source([source])
        found, *_ = translator.translate_ids(ids, tf.constant([False]))
        target = tf.concat([[[2]], found[0, :, :-1]], axis=1)
        _, scores = model((ids, target), return_attention_scores=True)
        expected = np.mean(scores["cross"][translator.default_layer][0], axis=0)
        np.testing.assert_allclose(weights[: len(targets), : len(sources)], expected, atol=1e-5)


def test_tokens_are_what_text_is_cut_into(translator, server):
    texts = [text for text in SOURCES if text]
    ids = translator.source_tokenizer(texts).to_tensor().numpy().tolist()
    reply = server.predict(ids, "tokens")
    output = translator.target_tokenizer.detokenize(reply["ids"]).numpy()
    expected = server.predict(texts)
    assert [text.decode() for text in output] == expected["text"]
    assert reply["log_prob"] == pytest.approx(expected["log_prob"], abs=1e-4)


def test_tokens_ignore_padding_and_marks_and_take_unknown_ids(translator, server):
    (ids,) = translator.source_tokenizer(["abc"]).to_list()
    marked = [[2, *ids, 3, 0, 0], [0, *ids[:1], 0, *ids[1:], 0, 0], [0] * (len(ids) + 4)]
    reply = server.predict([row[: len(ids) + 4] for row in marked], "tokens")
    plain = server.predict([ids], "tokens")
    assert reply["ids"][0][: len(plain["ids"][0])] == plain["ids"][0]
    assert not any(reply["ids"][2]) and reply["log_prob"][2] == 0.0
    reply = server.predict([[10**9, -3, 5]], "tokens")
    assert np.isfinite(reply["log_prob"][0])


def test_names_of_signatures():
    assert check_names(["score", "beam"]) == ("serving_default", "beam", "score")
    with pytest.raises(ValueError, match="Unknown signature 'beams': choose from"):
        check_names(["beams"])


def test_beam_wider_than_the_vocabulary(translator, tmp_path):
    with pytest.raises(ValueError, match="wider than the vocabulary"):
        export(translator, tmp_path / "base", config=ExportConfig(beam_size=1000))
    assert not (tmp_path / "base").exists()
