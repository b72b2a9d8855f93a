"""Models of several languages: which token stands where, in memory and in an export."""

import json

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.presets.languages import Languages
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.versions import SIGNATURES
from keras_transformer.special_ids import END, PAD
from keras_transformer.translation.sentences import LEAST_LOG_PROB
from tests.support.command_line import refused, run, succeeds
from tests.support.made_once import made_once
from tests.support.paths import FIXTURES

TEXTS = ["A man in an orange hat.", "Hündin", "", "Five people stand in the snow."]
CODES = dict(source_language="eng_Latn", target_language="deu_Latn")
MANY = dict(source_language=["eng_Latn", "deu_Latn", "fra_Latn", "eng_Latn"])
MANY |= dict(target_language=["deu_Latn", "eng_Latn", "zho_Hans", "fra_Latn"])


@pytest.fixture(scope="session")
def nllb(tmp_path_factory):
    folder = FIXTURES / "m2m100" / "nllb"
    return made_once(tmp_path_factory, "nllb", lambda path: kt.import_model(folder, path))


@pytest.fixture(scope="module")
def translator(nllb):
    return kt.load(nllb)


@pytest.fixture(scope="session")
def export(nllb, tmp_path_factory):
    def make(path):
        config = kt.ExportConfig(signatures=("beam", "score", "attention", "tokens"), beam_size=3)
        kt.export(kt.load(nllb), path, config=config)

    return made_once(tmp_path_factory, "nllb-export", make)


def test_where_the_tokens_stand(translator, monkeypatch):
    languages = translator.language_rows(TEXTS, **MANY)
    texts = [*TEXTS[:3], 20 * TEXTS[3]]  # the last one is truncated
    source, empty = translator.read_source(texts, languages)
    assert source.shape[1] == translator.model.max_length
    rows = translator.source_tokenizer.pieces(source).numpy()
    pieces = [[x.decode() for x in row if x not in (b"<pad>", b"</s>")] for row in rows]
    assert [row[0] for row in pieces if row] == ["eng_Latn", "deu_Latn", "eng_Latn"]
    assert empty.numpy().tolist() == [False, False, True, False]
    assert not pieces[2]  # an empty line has no language
    other = Languages(translator.languages.tokens, "text source")
    monkeypatch.setattr(translator, "languages", other)
    last, _ = translator.read_source(texts, languages)
    for one, other in zip(source.numpy(), last.numpy(), strict=True):
        one, other = one[one != PAD], other[other != PAD]
        assert [*other] == ([*one[1:], one[0]] if len(one) > 1 else [END])


@pytest.mark.parametrize("how", [{}, {"beam_size": 3}, {"sample": True, "seed": 5}])
def test_a_row_does_not_depend_on_the_languages_of_others(how, translator):
    together = translator.translate_n_best(TEXTS, **MANY, **how)
    for number, text in enumerate(TEXTS):
        codes = {name: listed[number] for name, listed in MANY.items()}
        (alone,) = translator.translate_n_best([text], first=number, **codes, **how)
        assert [x.text for x in alone] == [x.text for x in together[number]]
        scores = [x.score for x in together[number]]
        assert [x.score for x in alone] == pytest.approx(scores, rel=1e-5)
    other = translator.translate(TEXTS, **CODES | {"target_language": "fra_Latn"}, **how)
    assert other != translator.translate(TEXTS, **CODES, **how)


def test_the_token_of_the_target_costs_nothing(translator):
    text, target = TEXTS[0], "ein Mann"
    ((log_prob, count),) = translator.score([text], [target], **CODES)
    ids = translator.language_ids
    source = translator.source_tokenizer([text], end=True).to_list()[0]
    label = translator.target_tokenizer([target], end=True).to_list()[0]
    inputs = [kt.START, ids["deu_Latn"], *label[:-1]]
    given = np.array([[ids["eng_Latn"], *source]]), np.array([inputs])
    logits = np.array(translator.model.suppress(translator.model(given)), "float64")[0, 1:]
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    assert count == len(label)
    assert log_prob == pytest.approx(logits[np.arange(count), label].sum(), rel=1e-5)
    languages = translator.language_rows([text], **CODES)
    source = translator.read_source([text], languages)
    _, _, found, _ = translator.translate_ids(*source, languages=languages, prefix=[label])
    assert float(found[0, 0]) == pytest.approx(log_prob, rel=1e-5)


def test_it_is_no_part_of_a_minimum_length(translator):
    languages = translator.language_rows(TEXTS, **MANY)
    source, empty = translator.read_source(TEXTS, languages)
    suppressed = translator.model.suppressed
    own = suppressed.numpy()
    suppressed.assign(own + 99 * np.eye(len(own))[END])
    try:
        how = {"search": kt.SearchConfig(min_length=3), "languages": languages}
        tokens, *_ = translator.translate_ids(source, empty, **how)
    finally:
        suppressed.assign(own)
    assert np.all(np.argmax(tokens == END, axis=2) == 3)


def test_prefixes_alignments_and_maps(translator):
    prefix = translator.translate(TEXTS[:1], **CODES)[0][:3]
    (found,) = translator.translate(TEXTS[:1], prefixes=[prefix], **CODES)
    assert found.startswith(prefix)
    ((source, target, positions),) = translator.align(TEXTS[:1], ["ein Mann"], **CODES)
    assert "eng_Latn" not in source and "deu_Latn" not in target
    assert len(positions) == len(target) and max(positions) < len(source)
    maps = kt.attention_maps(translator, TEXTS[0], "ein Mann", **CODES)
    assert maps.source_tokens[0] == "eng_Latn" and maps.target_tokens[0] == "deu_Latn"
    steps = kt.token_probabilities(translator, TEXTS[0], "ein Mann", **CODES)
    ((log_prob, count),) = translator.score(TEXTS[:1], ["ein Mann"], **CODES)
    assert len(steps) == count
    assert sum(step.log_prob for step in steps) == pytest.approx(log_prob, rel=1e-4)


def test_bad_languages(translator):
    for codes, message in (
        ({}, "4 languages: give the source_language, such as deu_Latn, eng_Latn"),
        (CODES | {"target_language": "deu"}, "no target_language 'deu': .* such as deu_Latn"),
        (CODES | {"target_language": ["deu_Latn"]}, "one for each of 4 texts, received 1"),
    ):
        with pytest.raises(ValueError, match=message):
            translator.translate(TEXTS, **codes)


def test_graphs_take_the_default_languages(nllb, translator):
    with pytest.raises(ValueError, match="4 languages: give the source_language"):
        translator.serve(TEXTS)
    fixed = kt.load(nllb)
    fixed.languages = translator.languages.choose("eng_Latn", "fra_Latn")
    others = fixed.serve(TEXTS)["text"]
    fixed.languages = translator.languages.choose(*CODES.values())
    # With the limits of the model's own search, as an export has them.
    expected = translator.translate(TEXTS, search=fixed.default_search.greedy, **CODES)
    assert [text.decode() for text in fixed.serve(TEXTS)["text"].numpy()] == expected
    assert np.any(fixed.serve(TEXTS)["text"] != others)


def test_a_model_without_languages(trained_run):
    refused(["translate", trained_run, "--target-language", "de"], "no languages to choose from")


def test_an_export_answers_as_the_model_in_memory(export, translator):
    exported = ExportedTranslator(export)
    for search in (kt.SearchConfig(), kt.SearchConfig(beam_size=3)):
        expected = translator.translate(TEXTS, search=search, **MANY)
        assert exported.translate(TEXTS, search=search, **MANY) == expected
    found, _ = kt.load_saved_model(export)(TEXTS, **MANY)
    assert found == translator.translate(TEXTS, search=kt.SearchConfig(), **MANY)
    pairs = [translator.score(TEXTS, TEXTS, **MANY), exported.score(TEXTS, TEXTS, **MANY)]
    np.testing.assert_allclose(*pairs, rtol=1e-4)
    with pytest.raises(ValueError, match="no target_language 'deu': choose"):
        exported.translate(TEXTS, **CODES | {"target_language": "deu"})


def test_unknown_codes_give_their_row_no_translation(export):
    exported = ExportedTranslator(export)
    codes = {"source_language": ["eng_Latn"] * 2, "target_language": ["?", "deu_Latn"]}
    inputs = {"text": TEXTS[:2], "source": TEXTS[:2], "target": ["a b"] * 2, "ids": [[5, 6]] * 2}
    for name in set(exported.signatures) & set(SIGNATURES):
        known = {key: inputs[key] for key in inputs if key in exported.signatures[name][0]}
        bad, good = exported._ask(name, known | codes, 2)
        for key, value in bad.items():
            values = np.ravel(value).tolist()
            blank = LEAST_LOG_PROB if key in ("log_prob", "score") else type(values[0])()
            assert set(values) == {blank}, (name, key)
        assert np.max(good["log_prob" if "log_prob" in good else "attention"]) > LEAST_LOG_PROB


def test_an_export_of_one_pair_needs_no_language(nllb, tmp_path, translator):
    expected = translator.translate(TEXTS, **CODES)
    greedy = translator.translate(TEXTS, search=kt.SearchConfig(max_output_length=23), **CODES)
    options = ["--source-language", "eng_Latn", "--target-language", "deu_Latn"]
    text = "\n".join(TEXTS).encode()
    assert run("translate", nllb, *options, stdin=text).stdout.decode().splitlines() == expected
    succeeds("export", nllb, tmp_path / "export", "--signatures", *options)
    card = json.loads((tmp_path / "export" / "1" / "model.json").read_text())["languages"]
    assert (card["inputs"], card["target_language"]) == ([], "deu_Latn")
    assert run("translate", tmp_path / "export", stdin=text).stdout.decode().splitlines() == greedy
    message = "has the target_language 'deu_Latn', received 'fra_Latn'"
    refused(["translate", tmp_path / "export", "--target-language", "fra_Latn"], message)
    exported = ExportedTranslator(tmp_path / "export")
    for translate in (exported.translate, kt.load_saved_model(tmp_path / "export")):
        with pytest.raises(ValueError, match=message):
            translate(TEXTS, target_language="fra_Latn")
