"""The files that models come in: names of tensors, dtypes, vocabularies, searches, zips."""

import functools
import json
import os
import shutil
import zipfile

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.tensors import read_tensors
from keras_transformer.tools.importers.vocabularies import read_vocabulary, rewrite
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from tests.support.command_line import refused, run
from tests.support.marian_models import FOLDER, TAGS, write_native

SHARED, HEAD = "model.shared.weight", "lm_head.weight"
SIDES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
SEARCH = ("beam_size", "length_penalty", "length_norm", "max_output_length")


@pytest.fixture
def folder(tmp_path):
    """A copy of a model of Hugging Face that can be imported."""
    return shutil.copytree(FOLDER / "tied", tmp_path / "model")


def edit(path, **changes):
    options = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(options | changes))


def weights_of(folder):
    """The weights of the model that a folder is imported as."""
    model = read_source(folder)
    sides = rewrite(model.source, model.target)
    config = resolve_sharing(model)
    transformer = kt.Transformer(*(len(x.rows) for x in sides), **vars(config))
    transformer.build()
    load_weights(transformer, model, *sides)
    return transformer.get_weights()


@functools.cache
def usual_weights():
    return weights_of(FOLDER / "tied")


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


# --- weights ---


def test_tied_tensors_under_one_name(folder):
    """safetensors.torch.save_model keeps the first name only."""
    path = folder / "model.safetensors"
    arrays = load_file(path)
    save_file(arrays | {HEAD: arrays.pop(SHARED)}, path)
    assert_equal(weights_of(folder), usual_weights())


def test_a_shared_matrix_that_nothing_reads(folder):
    """transformers 5 has it beside those of both sides if tie_word_embeddings is false."""
    path = folder / "model.safetensors"
    arrays = load_file(path)
    own = {name: np.roll(arrays[SHARED], i, 0) for i, name in enumerate([*SIDES, HEAD], start=1)}
    edit(folder / "config.json", tie_word_embeddings=False)
    save_file(arrays | own, path)
    read = read_source(folder)
    assert SHARED not in read.tensors
    config = resolve_sharing(read)
    assert config.share_embeddings == "none"
    expected = weights_of(folder)
    arrays.pop(SHARED)
    save_file(arrays | own, path)
    assert_equal(weights_of(folder), expected)


def test_bfloat16_is_widened(folder):
    path = folder / "model.safetensors"
    rounded = {name: x.astype(ml_dtypes.bfloat16) for name, x in load_file(path).items()}
    save_file({name: x.astype("float32") for name, x in rounded.items()}, path)
    expected = weights_of(folder)
    save_file(rounded, path)
    assert_equal(weights_of(folder), expected)


@pytest.mark.parametrize("start", [b"\x80", b"PK"])
def test_a_size_like_the_start_of_another_format(start, tmp_path):
    """A header of 128 bytes begins like a pickle, one of 19,280 like a zip."""
    path, size = tmp_path / "x", int.from_bytes(start, "little")
    for number in range(max(0, size - 128), size):
        save_file({"a": np.ones(2, "float32")}, path, {"b": "c" * number})
        if path.read_bytes().startswith(start):
            break
    np.testing.assert_array_equal(read_tensors(path)["a"], [1, 1])


# --- vocabularies ---


def test_rows_without_a_piece_are_dropped(folder, tmp_path):
    path = folder / "model.safetensors"
    arrays = load_file(path)
    rows = len(arrays[SHARED]) + 5
    arrays[SHARED] = np.pad(arrays[SHARED], [(0, 5), (0, 0)], constant_values=9.0)
    save_file(arrays, path)
    refused(["import", folder, tmp_path / "run"], "they belong to different models")
    edit(folder / "config.json", vocab_size=rows, decoder_vocab_size=rows)
    assert_equal(weights_of(folder), usual_weights())
    bias = "final_logits_bias"
    save_file(arrays | {bias: np.pad(arrays[bias], [(0, 0), (0, 5)])}, path)
    assert_equal(weights_of(folder), usual_weights())


def test_added_tokens_that_do_not_fit(folder, tmp_path):
    pieces = json.loads((folder / "vocab.json").read_text())
    added, run = folder / "added_tokens.json", tmp_path / "run"
    added.write_text(json.dumps({"<a>": len(pieces) + 1}))
    refused(["import", folder, run], f"must number added tokens from {len(pieces)}")
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"7": "<a>"})
    refused(["import", folder, run], "of another form")
    edit(folder / "tokenizer_config.json", added_tokens_decoder={})
    word = next(piece for piece in pieces if len(piece) > 2 and piece[0] == "▁")
    added.write_text(json.dumps({word[1:]: len(pieces)}))
    edit(folder / "config.json", vocab_size=len(pieces) + 1)
    refused(["import", folder, run], f"and a vocabulary without {word}")


@pytest.mark.parametrize("start", ["", "---\n", "\ufeff", "\ufeff---\n"], ids=ascii)
def test_pieces_in_yaml_are_strings(start, tmp_path):
    path = tmp_path / "x.vocab.yml"
    lines = ["</s>: 0", '"<unk>": 1', "no: 2", "1e3: 3", '":": 4', "'it''s': 5", '"\\"": 6']
    lines += ['"\\u2581\\\\": 7', "? long", ": 8", "---: 9", ""]
    path.write_text(start + "\n".join(lines))
    expected = ["</s>", "<unk>", "no", "1e3", ":", "it's", '"', "▁\\", "long", "---"]
    assert read_vocabulary(path) == expected


def test_lists_of_the_tatoeba_challenge(tmp_path):
    folders = [
        write_native(tmp_path / kind, separate=True, vocabularies=kind) for kind in ("yml", "lists")
    ]
    for side, end in (("source", "src"), ("target", "trg")):
        os.rename(folders[1] / f"opus.{side}.lists", folders[1] / f"opus.{end}.vocab")
    models = [read_source(folders[0])]
    vocabs = [f"/home/{end}/opus.{end}.vocab" for end in ("src", "trg")]
    edit_decoder(folders[1], vocabs=vocabs)
    models.append(read_source(folders[1]))
    (folders[1] / "decoder.yml").unlink()
    models.append(read_source(folders[1]))
    assert models[0].source.tags == TAGS and models[0].source != models[0].target
    for model in models[1:]:
        assert (model.source, model.target) == (models[0].source, models[0].target)
    assert_equal(weights_of(folders[1]), weights_of(folders[0]))
    assert models[2].imported.beam_size == 6


def edit_decoder(folder, **changes):
    import yaml

    path = folder / "decoder.yml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def test_vocabularies_of_marian_itself(tmp_path):
    folder = write_native(tmp_path / "opus", separate=True, vocabularies="spm")
    model = read_source(folder)
    for side, rewritten in zip(SIDES, rewrite(model.source, model.target), strict=True):
        import sentencepiece

        name = f"opus.{'source' if 'encoder' in side else 'target'}.spm"
        original = sentencepiece.SentencePieceProcessor(str(folder / name))
        tokenizer = kt.SubwordTokenizer(rewritten.model)
        lines = ["A man in the snow.", "Zwei Hunde", ">>fra<< x", "漢字"]
        found = [rewritten.rows[row].tolist() for row in tokenizer(lines).to_list()]
        assert found == original.encode(lines)
    assert weights_of(folder)


def test_two_vocabularies_of_one_name_are_not_one(tmp_path):
    folder = write_native(tmp_path / "opus", separate=True)
    names = [f"{side}/vocab.yml" for side in ("en", "de")]
    edit_decoder(folder, vocabs=names)
    shutil.copy(folder / "opus.target.vocab.yml", folder / "vocab.yml")
    refused(["import", folder, tmp_path / "run"], "but there is one file for two of them")
    for name, side in zip(names, ("source", "target"), strict=True):
        (folder / name).parent.mkdir()
        shutil.copy(folder / f"opus.{side}.vocab.yml", folder / name)
    model = read_source(folder)
    assert model.source.pieces != model.target.pieces


# --- searches ---

# What changes translations, by the names of transformers 5.24, and values that change nothing.
CHANGES = {
    "min_length": (5, 0),
    "min_new_tokens": (5, None),
    "early_stopping": ("never", True),
    "max_time": (2.0, None),
    "stop_strings": (["."], None),
    "do_sample": (True, False),
    "repetition_penalty": (1.2, 1.0),
    "encoder_repetition_penalty": (1.2, 1.0),
    "no_repeat_ngram_size": (3, 0),
    "encoder_no_repeat_ngram_size": (3, 0),
    "forced_bos_token_id": (0, None),
    "exponential_decay_length_penalty": ([2, 1.5], None),
    "begin_suppress_tokens": ([7], []),
    "sequence_bias": ([[[5], -9.0]], None),
    "token_healing": (True, False),
    "guidance_scale": (2.0, 1.0),
    "watermarking_config": ({"bias": 2.0}, None),
    "penalty_alpha": (0.6, None),
    "dola_layers": ("high", None),
    "diversity_penalty": (0.5, 0.0),
    "num_beam_groups": (2, 1),
    "constraints": ([1], None),
    "force_words_ids": ([[1]], None),
    "unheard_of": (1, None),
}


def test_every_option_that_changes_translations_is_named(folder):
    path = folder / "generation_config.json"
    edit(path, **{name: values[0] for name, values in CHANGES.items()}, bad_words_ids=[[1, 2]])
    notes = read_source(folder).notes
    for name, (value, _) in CHANGES.items():
        assert f"{name} {json.loads(json.dumps(value))!r}"[:40].lower() in "\n".join(notes).lower()
    assert len(notes) == len(CHANGES) + 1
    edit(path, **{name: values[1] for name, values in CHANGES.items()}, bad_words_ids=[[1]])
    assert not read_source(folder).notes
    # Where it is missing, config.json has the options, beside those of the architecture.
    path.unlink()
    edit(folder / "config.json", no_repeat_ngram_size=3)
    assert read_source(folder).notes == ["no_repeat_ngram_size 3 of the configuration is ignored."]


def test_options_of_the_search_that_are_read(folder):
    path = folder / "generation_config.json"
    edit(path, max_new_tokens=5, length_penalty=None, num_beams=None, suppress_tokens=[7, 9])
    model = read_source(folder)
    assert [getattr(model.imported, name) for name in SEARCH] == [1, 1.0, "length", 5]
    assert not model.notes
    _, target = rewrite(model.source, model.target)
    assert target.suppressed[np.isin(target.rows, [7, 9])].all()
    assert not target.suppressed[target.rows == 8].any()
    edit(path, eos_token_id=[2])
    with pytest.raises(ValueError, match=r"eos_token_id must be one id .* received \[2\]"):
        read_source(folder)


def test_sampling_of_marian_is_named(tmp_path):
    folder = write_native(tmp_path / "opus", decoder={"output-sampling": ["topk", "10"]})
    edit_decoder(folder, normalize=None)
    model = read_source(folder)
    assert "output-sampling ['topk', '10'] of the configuration is ignored." in model.notes
    assert model.imported.length_penalty == 0


# --- zips ---


def write_zip(path, folder, inside="", more=None):
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, inside + file.name)
        for name, content in (more or {}).items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("kind", ["Hugging Face", "native"])
def test_zips_are_their_folders(kind, folder, tmp_path):
    if kind == "native":
        folder = write_native(tmp_path / "opus")
    mac = {f"__MACOSX/top/._{x.name}": b"\0\5\x16\7" for x in folder.iterdir()}
    other = {"top/onnx/config.json": "{}", "top/.DS_Store": b"\0", "top/": b""}
    path = write_zip(tmp_path / "some.zip", folder, "top/", mac | other)
    result = run("import", path, tmp_path / "run")
    assert result.returncode == 0, result.stderr.decode()
    assert_equal(kt.load(tmp_path / "run").model.get_weights(), weights_of(folder))


def test_refusals_of_zips_name_them(folder, tmp_path):
    edit(folder / "config.json", d_model=8)
    path = write_zip(tmp_path / "some.zip", folder)
    refused(["import", path, tmp_path / "run"], f"keras-transformer: {path}/model.safetensors: ")
    path = write_zip(tmp_path / "two.zip", folder, "a/", {"b/model.npz": b""})
    refused(["import", path, tmp_path / "run"], f"{path} must be the zip of one model")


def test_hidden_files_are_no_models(tmp_path):
    folder = write_native(tmp_path / "opus")
    for name in ("._model.npz", "._opus.source.vocab.yml"):  # of macOS
        (folder / name).write_bytes(b"\0\5\x16\7")
    (folder / "decoder.yml").unlink()
    assert len(read_source(folder).tensors) > 20


# --- what is no model, and what to do ---


@pytest.mark.parametrize("name", ["tf_model.h5", "model.safetensors.index.json"])
def test_other_files_than_weights(name, folder, tmp_path):
    (folder / "model.safetensors").rename(folder / name)
    message = "neither model.safetensors nor pytorch_model.bin: load the model with transformers"
    refused(["import", folder, tmp_path / "run"], message)


def test_a_folder_in_which_marian_trains(tmp_path):
    folder = write_native(tmp_path / "opus")
    (folder / "decoder.yml").rename(folder / "model.npz.decoder.yml")
    for name in ("model.npz.optimizer.npz", "model.npz.best-perplexity.npz"):
        shutil.copy(folder / "model.npz", folder / name)
    refused(["import", folder, tmp_path / "run"], "copy one of them into a new folder")


@pytest.mark.parametrize("command", ["translate", "export", "evaluate", "score", "train"])
def test_other_commands_name_import(command, folder, tmp_path):
    (tmp_path / "pair.tsv").write_text("A man.\tA man.\n")
    pairs = ["--source", tmp_path / "pair.tsv"]
    more = {"export": ["base"], "evaluate": pairs, "score": pairs}
    more["train"] = ["--output", tmp_path / "tuned"]
    first = [command, "--start-from"] if command == "train" else [command]
    remedy = f"make a run of it by keras-transformer import {folder} RUN"
    refused([*first, folder, *more.get(command, [])], remedy)
    if command == "translate":
        path = write_zip(tmp_path / "some.zip", folder)
        refused([command, path], f"keras-transformer import {path} RUN")
