"""Marian models of Hugging Face compute what transformers computes; and which are refused."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.presets import BEAM_OPTIONS, CONTROLS
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.vocabularies import rewrite
from keras_transformer.tools.importers.weights import resolve_sharing
from tests.support.layer_harness import assert_equal
from tests.support.parity import SEARCHES
from tests.tools.importers.conftest import MARIAN, Imported, edit, refused, weights_of

SHARED, HEAD = "model.shared.weight", "lm_head.weight"
SIDES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


@pytest.mark.parametrize("name", ["tied", "separate", "untied", "half", "added"])
def test_what_transformers_computes(name, tmp_path):
    imported = Imported(MARIAN / name, tmp_path / "run")
    imported.check_ids_and_logits()
    for search in ("greedy", "beam 6") if name == "separate" else ("greedy",):
        theirs, how = imported.answers["searches"][search]["tokens"], SEARCHES[search]
        how = dict(beam_size=how["num_beams"], length_penalty=how.get("length_penalty", 0.0))
        imported.check_search(theirs, longest=31, length_norm="length", **how)
    assert name != "untied" or imported.silent_weights() == []
    assert imported.model.suppressed.numpy()[kt.UNK] == 0


def test_tied_tensors_under_one_name_and_in_bfloat16(folder):
    path = folder / "model.safetensors"
    arrays = {name: x.astype(ml_dtypes.bfloat16) for name, x in load_file(path).items()}
    save_file({name: x.astype("float32") for name, x in arrays.items()}, path)
    expected = weights_of(folder)
    save_file(arrays | {HEAD: arrays.pop(SHARED)}, path)
    assert_equal(weights_of(folder), expected)


def test_a_shared_matrix_that_nothing_reads(folder):
    """transformers 5 has it beside those of both sides if tie_word_embeddings is false."""
    path = folder / "model.safetensors"
    arrays = load_file(path)
    own = {name: np.roll(arrays[SHARED], i, 0) for i, name in enumerate([*SIDES, HEAD], start=1)}
    edit(folder / "config.json", tie_word_embeddings=False)
    save_file(arrays | own, path)
    model = read_source(folder)
    assert SHARED not in model.tensors and resolve_sharing(model).share_embeddings == "none"


def test_rows_without_a_piece_are_dropped(folder):
    path, bias, expected = folder / "model.safetensors", "final_logits_bias", weights_of(folder)
    arrays = load_file(path)
    arrays[SHARED] = np.pad(arrays[SHARED], [(0, 5), (0, 0)], constant_values=9.0)
    save_file(arrays, path)
    rows = len(arrays[SHARED])
    edit(folder / "config.json", vocab_size=rows, decoder_vocab_size=rows)
    assert_equal(weights_of(folder), expected)
    save_file(arrays | {bias: np.pad(arrays[bias], [(0, 0), (0, 5)])}, path)
    assert_equal(weights_of(folder), expected)


# What changes translations, and values that change nothing.
CHANGES = {
    "do_sample": (True, False),
    "encoder_repetition_penalty": (1.2, 1.0),
    "forced_bos_token_id": (0, None),
    "begin_suppress_tokens": ([7], []),
    "unheard_of": (1, None),
}


def test_every_option_that_changes_translations_is_named(folder):
    path = folder / "generation_config.json"
    edit(path, **{name: values[0] for name, values in CHANGES.items()}, bad_words_ids=[[1, 2]])
    notes = read_source(folder).notes
    for name, (value, _) in CHANGES.items():
        assert f"{name} {value!r} of the config".lower() in "\n".join(notes).lower()
    assert len(notes) == len(CHANGES) + 1
    edit(path, **{name: values[1] for name, values in CHANGES.items()}, bad_words_ids=[[1]])
    assert not read_source(folder).notes
    # Where it is missing, config.json has the options, beside those of the architecture.
    path.unlink()
    edit(folder / "config.json", do_sample=True)
    assert read_source(folder).notes == ["do_sample true of the configuration is ignored."]


def test_options_of_the_search_that_are_read(folder):
    path = folder / "generation_config.json"
    edit(path, max_new_tokens=5, length_penalty=None, num_beams=None, suppress_tokens=[7, 9])
    model = read_source(folder)
    assert [getattr(model.imported, name) for name in BEAM_OPTIONS] == [1, 1.0, "length", 2.0]
    assert [getattr(model.imported, name) for name in CONTROLS] == [5, 0, 0, 1.0]
    edit(path, early_stopping=True)
    assert read_source(folder).imported.beam_patience == 1.0
    # The decoder's first token counts in one of both.
    for name, expected in (("min_length", 4), ("min_new_tokens", 5)):
        edit(path, no_repeat_ngram_size=3, repetition_penalty=1.2, **{name: 5})
        found = read_source(folder)
        assert [getattr(found.imported, name) for name in CONTROLS] == [5, expected, 3, 1.2]
        assert not found.notes
    assert not model.notes
    _, target = rewrite(model.source, model.target)
    assert target.suppressed[np.isin(target.rows, [7, 9])].all()
    assert not target.suppressed[target.rows == 8].any()


# Options that would compute something else in the same shapes.
TRUE = ("scale_embedding", "static_position_embeddings", "is_encoder_decoder")
FALSE = ("normalize_before", "normalize_embedding", "add_final_layer_norm")


def test_unsupported_models(folder):
    config = folder / "config.json"
    sound = config.read_text()
    (folder / "generation_config.json").unlink()
    for changes, message in (
        *(({name: False}, f"{name} must be true") for name in TRUE),
        *(({name: True}, f"{name} must be false") for name in FALSE),
        ({"activation_function": "gelu_new"}, "activation_function must be"),
        ({"d_model": "16"}, "d_model must be"),
        ({"d_model": 8}, "must have the shape"),
        ({"encoder_attention_heads": 4}, "decoder_attention_heads must be 4"),
        ({"decoder_layers": 2}, "lacks model.decoder.layers.1"),
        ({"encoder_layers": 1}, "has model.encoder.layers.1"),
        ({"pad_token_id": 5}, "are of different models"),
        ({"eos_token_id": [0, 2]}, "eos_token_id must be one id below"),
    ):
        config.write_text(sound)
        edit(config, **changes)
        refused(folder, message)


def test_vocabularies_that_do_not_fit(folder):
    pieces = json.loads((folder / "vocab.json").read_text())
    added, listed = folder / "added_tokens.json", folder / "tokenizer_config.json"
    added.write_text(json.dumps({"<a>": len(pieces) + 1}))
    refused(folder, f"must number added tokens from {len(pieces)}")
    word = next(piece for piece in pieces if len(piece) > 2 and piece[0] == "▁")
    added.write_text(json.dumps({word[1:]: len(pieces)}))
    edit(folder / "config.json", vocab_size=len(pieces) + 1)
    refused(folder, f"and a vocabulary without {word}")
    added.unlink()
    edit(listed, added_tokens_decoder={"7": {"content": "<a>"}})
    refused(folder, "must number added tokens from")
    listed.unlink()
    edit(folder / "config.json", vocab_size=len(pieces))
    (folder / "vocab.json").write_text(json.dumps(pieces | {"more": len(pieces)}))
    refused(folder, "they belong to different models")
    (folder / "vocab.json").write_text(json.dumps(pieces | {"more": len(pieces) + 1}))
    refused(folder, "without gaps")
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    (folder / "vocab.json").write_text(json.dumps(pieces))
    refused(folder, "neither model.safetensors nor pytorch_model.bin: load the model")
