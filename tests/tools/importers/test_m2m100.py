"""M2M100 and NLLB models compute what transformers computes; and which are refused."""

import dataclasses
import json
import shutil
from fnmatch import fnmatch

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.runs.training_data import check_training
from keras_transformer.tools.importers.importing import HUB_FILES, read_source
from keras_transformer.translation.text_model import begin_with_languages
from tests.support.layer_harness import assert_equal
from tests.support.parity import M2M100, SEARCHES
from tests.tools.importers.conftest import Imported, edit, refused, weights_of

GIVEN = "pairs", "source_tokenizer", "target_tokenizer"
LONGEST = 23  # tokens of a translation, without that of its language


@pytest.fixture
def folder(tmp_path):
    """A copy of an NLLB model, whose weights are in two files."""
    return shutil.copytree(M2M100 / "nllb", tmp_path / "model")


@pytest.mark.parametrize("name", ["m2m100", "nllb"])
def test_what_transformers_computes(name, tmp_path):
    answers = json.loads((M2M100 / name / "answers.json").read_text(encoding="utf-8"))
    codes = dict(zip(("source_language", "target_language"), answers["languages"], strict=False))
    imported = Imported(M2M100 / name, tmp_path / "run", **codes)
    imported.check_ids_and_logits()
    assert imported.silent_weights() == []
    translator, (_, rows) = imported.translator, imported.rows
    _, label = begin_with_languages([translator.target_tokenizer] * 2, translator.languages)
    found = label(answers["lines"], end=True).to_list()
    assert [rows[row].tolist() for row in found] == answers["labels"]
    languages = translator.language_rows(answers["lines"])
    source, empty = translator.read_source(answers["lines"], languages)
    for search in ("greedy", "beam 4"):
        how = dict(beam_size=SEARCHES[search]["num_beams"], length_norm="length")
        options = kt.SearchConfig(**how, max_output_length=LONGEST)
        found = translator.translate_ids(source, empty, options, languages=languages)
        tokens, _, log_prob, score = found
        theirs = answers["searches"][search]["tokens"]
        ours = [rows[row[row != kt.PAD]].tolist() for row in tokens[:, 0].numpy()]
        same = [row == other[1:] for row, other in zip(ours, theirs, strict=True)]
        assert all(same) if search == "greedy" else sum(same) > len(same) / 2
        # The forced token has the probability 1, but counts as one of the length.
        lengths = [1 + len(row) if options.beam_size > 1 else 1 for row in ours]
        np.testing.assert_allclose(score[:, 0], log_prob[:, 0] / lengths, rtol=1e-5)


def test_what_is_downloaded():
    names = {path.name for path in (M2M100 / "nllb").iterdir()} - {"answers.json"}
    assert {name for name in names if any(fnmatch(name, kind) for kind in HUB_FILES)} == names


def test_what_is_imported(tmp_path, capsys):
    run = kt.import_model(M2M100 / "nllb", tmp_path / "run")
    config, printed = run.read_config(), capsys.readouterr().err
    assert (config.imported.kind, config.imported.beam_size) == ("NLLB (Hugging Face)", 5)
    assert "licence cc-by-nc-4.0" in printed
    options = "--source-language and --target-language"
    assert f"4 languages, chosen by {options}, such as deu_Latn, eng_Latn" in printed
    assert [*config.find_languages().tokens] == ["deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans"]
    assert [*read_source(M2M100 / "m2m100").imported.language_tags[:2]] == ["__af__", "__am__"]


def test_a_code_in_a_text_is_text(tmp_path):
    translator = kt.load(kt.import_model(M2M100 / "m2m100", tmp_path / "run"))
    ids = translator.source_tokenizer(["a __de__ </s> b"]).to_list()[0]
    known = {*translator.language_ids.values()}
    assert len(known) == 100 and not known & {*ids} and kt.END not in ids


def test_weights_in_one_file_and_in_several(folder):
    expected = weights_of(folder)
    shards = sorted(folder.glob("model-*.safetensors"))
    save_file({k: x for shard in shards for k, x in load_file(shard).items()}, folder / "all")
    shards[0].unlink()
    refused(folder, "is missing: copy all files that")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "all").rename(folder / "model.safetensors")
    assert_equal(weights_of(folder), expected)


def test_languages_by_their_order_alone(folder):
    """The first models have no tokenizer.json; their mask comes last."""
    (folder / "tokenizer.json").unlink()
    listed = {"additional_special_tokens": ["deu_Latn", {"content": "eng_Latn"}, "<other>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(listed))
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    source = read_source(folder).source
    assert source.pieces[-3:] == ["deu_Latn", "eng_Latn", "<mask>"]
    assert source.size == size


def test_unsupported_models(folder):
    for name, changes, message in (
        ("config.json", {"model_type": "nllb-moe"}, "the model is of the type 'nllb-moe'"),
        ("config.json", {"decoder_start_token_id": 0}, "decoder_start_token_id must be 2"),
        ("generation_config.json", {"decoder_start_token_id": 1}, "n_config.json: decoder_start"),
        ("config.json", {"vocab_size": 90}, "vocab_size must be 96 pieces and languages and"),
        ("tokenizer_config.json", {"num_madeup_words": 8}, "and 8 num_madeup_words, received 98"),
        ("tokenizer_config.json", {"tokenizer_class": "SMALL100Tokenizer"}, "'SMALL100Tokenizer'"),
    ):
        sound = (folder / name).read_text()
        edit(folder / name, **changes)
        refused(folder, message)
        (folder / name).write_text(sound)
    (folder / "added_tokens.json").write_text(json.dumps({"<ent>": 96}))
    refused(folder, "the added token '<ent>', which is not that of a language")
    (folder / "sentencepiece.bpe.model").unlink()
    refused(folder, "copy it from the model that was fine-tuned")


def test_ids_that_are_never_generated(folder):
    edit(folder / "generation_config.json", bad_words_ids=[[19], [60]], suppress_tokens=[99, 88])
    source = read_source(folder)
    assert (source.source.suppressed, source.target.suppressed) == (frozenset(), {19, 60, 99, 88})


def test_pairs_with_a_blank_side_are_dropped(tmp_path):
    both = dict(source_language="eng_Latn", target_language="deu_Latn")
    run = kt.import_model(M2M100 / "nllb", tmp_path / "run", **both)
    pairs = [("a man", "ein Mann"), ("", "ein Mann"), ("   ", "ein Mann"), ("a man", "")]
    text = tmp_path / "text.tsv"
    text.write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    # The languages of the run are those of a corpus, too.
    prepared = kt.PrepareConfig(str(text), valid_source=str(text), vocabularies=str(run))
    kt.prepare(prepared, tmp_path / "corpus")
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    tokenizers, languages = corpus.tokenizers, run.read_config().find_languages()
    begun = begin_with_languages(tokenizers, languages)
    for options in dict(corpus=corpus), dict(zip(GIVEN, (pairs, *begun), strict=True)):
        (((source, _), label),) = kt.make_dataset(**options, shuffle=False)
        firsts = tokenizers[0].pieces(source).numpy(), tokenizers[1].pieces(label).numpy()
        assert [[row[0].decode() for row in side] for side in firsts] == [
            [x] for x in both.values()
        ]


def test_a_training_names_its_languages(tmp_path):
    run = kt.import_model(M2M100 / "nllb", tmp_path / "run")
    text = tmp_path / "text.tsv"
    text.write_text("".join(f"{number} man\t{number} Mann\n" for number in range(9)))
    config = run.read_config()
    options = dict(start_from=str(run), train_source=str(text), valid_fraction=0.2)

    def check(**changes):
        check_training(kt.TrainConfig(**vars(config) | options | changes), tmp_path / "new")

    with pytest.raises(ValueError, match="4 languages: give the source_language"):
        check()
    both = dict(source_language="eng_Latn", target_language="deu_Latn")
    check(**both)
    prepared = kt.PrepareConfig(str(text), valid_fraction=0.2, vocabularies=str(run), **both)
    kt.prepare(prepared, tmp_path / "corpus")
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    sides = zip(corpus.tokenizers, vars(corpus.pairs).values(), strict=True)
    firsts = [tokenizer.pieces(side.gather(np.arange(1))[0]).numpy() for tokenizer, side in sides]
    assert [row[0].decode() for row in firsts] == [*both.values()]
    none, path = {"language_tags": (), "language_order": "target text"}, str(tmp_path / "corpus")
    without = dataclasses.replace(config.imported, **none)
    with pytest.raises(ValueError, match="with languages, which the run does not have"):
        check(imported=without, corpus=[path], train_source=None, valid_fraction=None)
    languages = dataclasses.replace(config.find_languages(), order="text source")
    with pytest.raises(ValueError, match="sources end with the token of their language cannot be"):
        languages.choose(*both.values()).beginnings()  # which trainings and prepare call
