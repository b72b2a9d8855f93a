"""What an export saves: signatures, asked the way a server is, and weights in fewer bits."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.serving.served_translator import StoredWeights, functions_of
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.versions import make_inputs, read_card
from tests.support.toy_translator import SOURCES, random_translator, serve_eagerly


def test_what_is_too_long_is_cut(server):
    reply = server.predict({"source": ["abc"], "target": ["A" * 1000]}, "score")
    assert reply["tokens"] == [12] and np.isfinite(reply["log_prob"][0])
    whole = [4 + k % 5 for k in range(24)]
    assert server.predict([whole], "tokens") == server.predict([whole[:11]], "tokens")
    assert server.predict([whole], "tokens") != server.predict([whole[:10]], "tokens")


def sample(server, texts, **values):
    return server.predict(make_inputs("sample", texts) | values, "sample")


def test_one_token_to_choose_from_is_greedy_search(server):
    rows, greedy = len(SOURCES), server.predict(SOURCES)["text"]
    for values in ({"top_k": [1] * rows}, {"temperature": [0.0] * rows}, {"top_p": [0.0] * rows}):
        assert sample(server, SOURCES, **values)["text"] == greedy
    assert sample(server, SOURCES)["text"] != greedy


def test_samples_depend_on_their_own_row_only(server):
    texts = ["abc", "hgf", "cafe", "abc"]
    rows = {"temperature": [0.5, 1.0, 2.0, 1.0], "top_k": [0, 2, 5, 0]}
    rows |= {"top_p": [1.0, 0.9, 1.0, 0.3], "seed": [1, 2, 3, -(2**62)]}
    together = sample(server, texts, **rows)
    for i, text in enumerate(texts):
        alone = sample(server, [text], **{key: values[i : i + 1] for key, values in rows.items()})
        assert alone["text"][0] == together["text"][i]
    many = sample(server, ["abc"] * 40, temperature=[1.5] * 40, seed=[*range(20)] * 2)["text"]
    assert many[:20] == many[20:] and len(set(many)) > 5


def test_sampling_takes_any_number(server):
    numbers = [0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e-30, 3.4e38]
    ks = [-5, 0, 1, 10**6, 2**31 - 1, -(2**31), 3]
    for values in ({"temperature": numbers}, {"top_p": numbers}, {"top_k": ks}):
        reply = sample(server, ["abc"] * 7, **values)
        assert len(reply["text"]) == 7 and np.isfinite(reply["log_prob"]).all()


def test_all_inputs_have_as_many_rows(server):
    reply = sample(server, ["abc", "a"], temperature=[1.0])
    assert "There must be one temperature for each text" in reply["error"]
    for rows in ((1, 2), (1, 0), (0, 1)):
        sources, targets = (["abc"] * number for number in rows)
        reply = server.predict({"source": sources, "target": targets}, "score")
        assert "There must be one target for each source" in reply["error"]


def test_attention_is_the_models(translator, server):
    reply = server.predict(SOURCES, "attention")
    assert reply["text"] == server.predict(SOURCES)["text"]
    sides, shape = [reply["target_tokens"], reply["source_tokens"]], np.shape(reply["attention"])
    assert shape[1:] == tuple(len(side[0]) for side in sides)
    for i, source in enumerate(SOURCES[:4]):
        targets, sources = ([token for token in side[i] if token] for side in sides)
        weights, there = np.array(reply["attention"][i]), np.s_[: len(targets), : len(sources)]
        if source:
            maps = kt.attention_maps(translator, source)
            assert (sources, targets) == (maps.source_tokens, maps.target_tokens)
            expected = np.mean(maps.scores["cross"][translator.default_layer], axis=0)
            np.testing.assert_allclose(weights[there], expected, atol=1e-5)
        weights[there] = 0
        assert not weights.any()
    assert not sources and not targets  # of an empty text


def test_tokens_are_what_text_is_cut_into(translator, server):
    texts = [text for text in SOURCES if text]
    ids = translator.source_tokenizer(texts).to_tensor().numpy().tolist()
    reply, expected = server.predict(ids, "tokens"), server.predict(texts)
    output = translator.target_tokenizer.detokenize(reply["ids"]).numpy()
    assert [text.decode() for text in output] == expected["text"]
    assert reply["log_prob"] == pytest.approx(expected["log_prob"], abs=1e-4)


def test_tokens_ignore_padding_and_marks_and_take_unknown_ids(translator, server):
    (ids,) = translator.source_tokenizer(["abc"]).to_list()
    width = len(ids) + 4
    marked = [[2, *ids, 3, 0, 0], [0, *ids[:1], 0, *ids[1:], 0, 0], [0] * width]
    reply = server.predict([(row + [0] * 4)[:width] for row in marked], "tokens")
    (plain,) = server.predict([ids], "tokens")["ids"]
    for row in reply["ids"][:2]:
        assert row[: len(plain)] == plain and not any(row[len(plain) :])
    assert not any(reply["ids"][2]) and reply["log_prob"][2] == 0.0
    size = translator.model.source_vocabulary_size
    unknown = [server.predict([[5, id, 6]], "tokens") for id in (size, 10**9, -3, kt.UNK)]
    assert unknown[1:] == unknown[:1] * 3
    assert unknown[0] != server.predict([[5, size - 1, 6]], "tokens")


def test_what_no_export_can_be_made_of(translator):
    for module, options, message in (
        (translator, dict(beam_size=1000), "wider than the vocabulary"),
        (random_translator(deviation=np.nan), {}, "weights that are not finite, such as "),
        (tf.Module(), {}, "Expected a Translator, received Module"),
        (translator, dict(target_language="de", signatures=()), "no languages to choose .* 'de'"),
    ):
        with pytest.raises(ValueError, match=message):
            functions_of(module, kt.ExportConfig(**options))


class Lowercasing(kt.Translator):
    def read_source(self, text, languages=None):
        return super().read_source(tf.strings.lower(text), languages)


@pytest.mark.parametrize("options", [{}, {"max_output_length": 9}, {"computation": "bfloat16"}])
def test_a_subclass_stays_one(translator, options):
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    lowercasing = Lowercasing(translator.model, *tokenizers)
    config, score = kt.ExportConfig(signatures=("score",), **options), {"target": ["AB"]}
    found = serve_eagerly(lowercasing, config, "score", source=["ABC"], **score)
    assert found == serve_eagerly(translator, config, "score", source=["abc"], **score)
    assert found != serve_eagerly(translator, config, "score", source=["ABC"], **score)


@pytest.fixture(scope="module")
def model():
    return random_translator(seed=5, share_embeddings="target", positions="learned").model


def lent(model, precision):
    with StoredWeights(model, precision).in_use():
        return {weight.path: np.array(weight.value) for weight in model.weights}


def is_matrix(weight):
    return weight.name.endswith(("kernel", "embeddings"))


def test_bfloat16_rounds_matrices_and_nothing_else(model):
    whole, found = lent(model, "float32"), lent(model, "bfloat16")
    for weight in model.weights:
        np.testing.assert_array_equal(whole[weight.path], weight.value)
        value = tf.convert_to_tensor(weight.value)
        expected = tf.cast(tf.cast(value, tf.bfloat16), tf.float32) if is_matrix(weight) else value
        np.testing.assert_array_equal(found[weight.path], expected)


def channels_last(weight, value):
    """The matrix (inputs, outputs) that a weight is."""
    if weight.name.endswith("embeddings"):
        return value.T
    if weight.path.endswith("attention_output/kernel"):
        return value.reshape(-1, value.shape[-1])
    return value.reshape(value.shape[0], -1)


def test_int8_has_a_scale_for_every_output_channel(model):
    embeddings = next(weight for weight in model.weights if weight.name == "embeddings")
    embeddings.assign(np.concatenate([np.zeros((1, 32)), embeddings[1:]]))  # a channel of zeros
    found = lent(model, "int8")
    for weight in model.weights:
        value, stored = np.array(weight.value), found[weight.path]
        if not is_matrix(weight):
            np.testing.assert_array_equal(stored, value)
            continue
        matrix, stored = channels_last(weight, value), channels_last(weight, stored)
        scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12) / 127
        np.testing.assert_allclose(stored, np.round(matrix / scale) * scale, rtol=1e-5, atol=1e-6)
        assert (np.abs(stored - matrix) <= scale / 2 * 1.001).all()
    # Two token and two position embeddings; 4 + 2 and 8 + 2 kernels of one layer each.
    assert sum(map(is_matrix, model.weights)) == 2 + 2 + 6 + 10


# In float32, though it was trained in half precision; tables of distances are not rounded.
INT8 = dict(positions="relative", max_distance=2, norm="pre", dtype="mixed_bfloat16")
BFLOAT16 = dict(positions="learned", share_embeddings="target", num_layers=2)
PRECISIONS = [("int8", INT8, "float32", 0.45), ("bfloat16", BFLOAT16, "bfloat16", 0.6)]


@pytest.mark.parametrize("precision, options, computation, share", PRECISIONS)
def test_weights_are_rounded(precision, options, computation, share, tmp_path, untried):
    translator = random_translator(seed=5, **options)
    translator.max_output_length = 11  # its own, which the export has, too
    config = kt.ExportConfig(signatures=(), precision=precision, computation=computation)
    path = kt.export(translator, tmp_path, config=config)
    card = read_card(path)
    assert card["precision"] == {"computation": computation, "weights": precision}
    assert (card["max_output_length"], card["architecture"]["max_length"]) == (11, 12)
    size = sum(file.stat().st_size for file in pathlib.Path(path, "variables").iterdir())
    assert size < share * 4 * card["parameters"]
    is_half = computation == "bfloat16"
    translator = translator.in_precision("mixed_bfloat16" if is_half else "float32")
    rounded = lent(translator.model, precision)
    assert rounded[translator.model.weights[0].path].dtype == computation
    for weight in translator.model.weights:
        assert weight.name.startswith("relative_") <= np.array_equal(weight, rounded[weight.path])
        weight.assign(rounded[weight.path])
    best = [found for (found,) in translator.translate_n_best(SOURCES, n_best=1)]
    with ServerProcess(path) as server:
        found = server.predict(SOURCES)
    # In half precision, two tokens can tie; of the same, 2e-2 for each of twelve.
    alike = [i for i, one in enumerate(best) if one.text == found["text"][i]]
    assert len(alike) >= (7 if is_half else len(SOURCES)) and len(set(found["text"])) > 3
    expected = pytest.approx([best[i].log_prob for i in alike], abs=0.24 if is_half else 1e-3)
    assert [found["log_prob"][i] for i in alike] == expected
