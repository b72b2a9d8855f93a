"""`import` takes folders, zips and names on the Hub; imported runs are runs like any other."""

import fnmatch
import json
import re
import sys
import zipfile
from unittest import mock

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.presets import SearchConfig
from keras_transformer.runs.opening import _warn_of_missing_tag
from keras_transformer.runs.run import Run
from keras_transformer.serving.served_translator import functions_of, run_signature
from keras_transformer.tools.importers.importing import read_source
from tests.support.command_line import refused, run
from tests.support.marian_models import FOLDER, SENTENCES, TAGS
from tests.tools.importers.conftest import assert_equal, edit, weights_of

LINES = [*SENTENCES["source"][:4], "", ">>fra<< A man."]
SEARCH = SearchConfig(4, 1.0, length_norm="length", max_output_length=31)


@pytest.fixture
def translator(imported):
    translator = kt.load(imported / "run", "float32")
    translator.run_eagerly = True
    return translator


def test_what_is_printed_and_recorded(imported):
    printed = (imported / "printed").read_text(encoding="utf-8")
    assert "licence cc-by-4.0" in printed
    assert "begin each source with one of 2 language tags: >>deu<<, >>fra<<\n" in printed
    config = Run(imported / "run").read_config()
    origin = config.imported
    assert (origin.source, origin.licence, origin.beam_size) == ("tied", "cc-by-4.0", 4)
    assert origin.language_tags == TAGS
    assert re.fullmatch("[0-9a-f]{64}", origin.sha256)
    assert (config.model.epsilon, config.model.depths, config.model.dropout) == (1e-5, (2, 1), 0.1)
    described = Run(imported / "run").describe()
    assert described["imported"]["source"] == "tied" and described["recipe"] == {}


# --- searches and exports ---


def translate(path, *options):
    result = run("translate", path, *options, stdin="\n".join(LINES).encode() + b"\n")
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def warnings_of(path, *lines):
    """What `translate` prints about language tags, as in a process of its own."""
    _warn_of_missing_tag.cache_clear()
    result = run("translate", path, stdin="\n".join(lines).encode())
    assert result.returncode == 0
    return result.stderr.decode().count("warning: a source has no language tag, such as >>deu<<")


def test_a_source_without_a_language_tag_gets_one_warning(imported):
    path = imported / "run"
    assert warnings_of(path, ">>fra<< A man.", "", "  >>deu<< Two dogs.") == 0
    assert warnings_of(path, ">>fra<< A man.", "A man.", "Two dogs.") == 1


def test_its_own_search_is_the_default(imported, translator):
    assert translator.default_search == SEARCH
    own = translate(imported / "run")
    assert own == translator.translate(LINES) == translator.translate(LINES, search=SEARCH)
    assert own != translator.translate(LINES, search=SearchConfig(max_output_length=31))
    assert kt.ExportConfig.for_search(translator.default_search).beam_size == 4  # kt.export's


def test_an_export_with_a_token_before_every_source(imported, translator, tmp_path):
    """And with the search of the imported model."""
    options = "--prefix-token", ">>fra<<", "--signatures", "beam"
    result = run("export", imported / "run", tmp_path, *options)
    assert result.returncode == 0, result.stderr.decode()
    card = json.loads((tmp_path / "1" / "model.json").read_text())
    assert (card["imported"]["source"], card["imported"]["licence"]) == ("tied", "cc-by-4.0")
    assert (card["prefix_token"], card["max_output_length"]) == (">>fra<<", 31)
    beam = {key: card["signatures"]["beam"][key] for key in ("beam_size", "length_norm")}
    assert beam == {"beam_size": 4, "length_norm": "length"}
    assert warnings_of(tmp_path, "A man.") == 0
    tagged = [f">>fra<< {line}" if line else "" for line in LINES]
    assert translate(tmp_path, "--beam-size", "4") == translator.translate(tagged)
    config = kt.ExportConfig(prefix_token=">>fra<<", max_output_length=31, signatures=("tokens",))
    _, functions = functions_of(translator, config)
    ids = translator.source_tokenizer(LINES[:3]).to_tensor().numpy()
    found = run_signature(functions, "tokens", {"ids": ids})["ids"]
    texts = translator.target_tokenizer.detokenize(found).numpy()
    expected = translator.translate(tagged[:3], search=SearchConfig(max_output_length=31))
    assert [text.decode() for text in texts] == expected
    for token in (">>xxx<<", "A man", ""):
        with pytest.raises(ValueError, match="prefix_token must be one token of the source"):
            functions_of(translator, kt.ExportConfig(prefix_token=token))


# --- training ---


def test_fine_tuning(imported, translator, tmp_path):
    pairs = [f"{a}\t{b}\n" for a, b in zip(SENTENCES["source"], SENTENCES["target"], strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    options = "--learning-rate 0.003 --warmup-steps 2 --parallel-microbatches 1 --epochs 1"
    options += " --steps-per-epoch 3 --tokens-per-batch 512"
    files = "--train-source", tmp_path / "pairs.tsv", "--valid-source", tmp_path / "pairs.tsv"
    start = ["train", "--start-from", imported / "run", *options.split(), *files]
    result = run(*start, "--output", tmp_path / "tuned")
    assert result.returncode == 0, result.stderr.decode()
    assert Run(tmp_path / "tuned").read_config().imported.source == "tied"
    before, after = translator.model, kt.load(tmp_path / "tuned").model
    np.testing.assert_array_equal(after.suppressed, before.suppressed)
    for name in ("embeddings", "output_bias"):
        old, new = (getattr(model.target_embedding, name) for model in (before, after))
        assert not np.array_equal(old, new)


def test_what_imported_runs_do_not_have(imported, tmp_path):
    path = imported / "run"
    refused(["average", path, tmp_path / "mean"], "has no checkpoints")
    refused(["train", "--resume", "--output", path], "is an imported model")
    refused(["import", FOLDER / "tied", path], "is not empty")
    # They do not fall back to the dates.
    refused(["evaluate", path], "--source is missing")
    out = "--output", tmp_path / "tuned"
    refused(["train", "--start-from", path, *out], "--train-source is missing")


@pytest.mark.parametrize("command", ["translate", "train"])
def test_other_commands_name_import(command, folder, tmp_path):
    words = ["train", "--output", tmp_path / "tuned", "--start-from"]
    words = words if command == "train" else [command]
    remedy = f"make a run of it by keras-transformer import {folder} RUN"
    refused([*words, folder], remedy)


# --- zips ---


def write_zip(path, folder, inside="", more=None):
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir() if folder else ():
            archive.write(file, inside + file.name)
        for name, content in (more or {}).items():
            archive.writestr(name, content)
    return path


def test_zips_are_their_folders(folder, tmp_path):
    mac = {f"__MACOSX/top/._{x.name}": b"\0\5\x16\7" for x in folder.iterdir()}
    other = {"top/onnx/config.json": "{}", "top/.DS_Store": b"\0", "top/": b""}
    path = write_zip(tmp_path / "some.zip", folder, "top/", mac | other)
    assert kt.import_model(path, tmp_path / "run").read_config().imported.source == "some"
    assert_equal(kt.load(tmp_path / "run").model.get_weights(), weights_of(folder))
    refused(["translate", path], f"keras-transformer import {path} RUN")
    edit(folder / "config.json", d_model=8)
    path = write_zip(tmp_path / "some.zip", folder)
    refused(["import", path, tmp_path / "2"], f"keras-transformer: {path}/model.safetensors: ")
    path = write_zip(tmp_path / "two.zip", folder, "a/", {"b/model.npz": b""})
    refused(["import", path, tmp_path / "2"], f"{path} must be the zip of one model")


def test_zips_that_leave_their_folder(tmp_path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "opus.zip"
    for name in ("../model.npz", f"{tmp_path}/model.npz", "a/../../model.npz", "..\\model.npz"):
        write_zip(path, None, more={name: b""})
        refused(["import", path, tmp_path / "run"], "opus.zip")
    assert [x.name for x in tmp_path.iterdir()] == ["in"]


# --- what is no model ---


def test_what_is_no_model(folder, tmp_path):
    (tmp_path / "text.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    path = tmp_path / "run"
    refused(["import", tmp_path / "text.txt", path], "is not a zip file")
    refused(["import", tmp_path / "empty", path], "has neither config.json")
    refused(["import", tmp_path / "none" / "at" / "all", path], "does not exist")
    refused(["import", tmp_path / "empty", tmp_path], "is not empty")
    refused(["import", folder, path, "--num-heads", "2"], "are for OpenNMT-tf")
    assert not path.exists()


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json"])
def test_files_that_are_missing_or_truncated(name, folder):
    path = folder / name
    for content in (path.read_bytes()[: path.stat().st_size // 2], None):
        path.write_bytes(content) if content else path.unlink()
        with pytest.raises(ValueError, match=name):
            read_source(folder)


def test_a_model_by_its_name_on_the_hub(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    download = mock.create_autospec(huggingface_hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    download.return_value = str(FOLDER / "tied")
    new = kt.import_model("owner/model", tmp_path / "run")
    assert new.read_config().imported.source == "owner/model"
    ((name,), options) = download.call_args
    names, patterns = {path.name for path in (FOLDER / "tied").iterdir()}, options["allow_patterns"]
    taken = {x for x in names if any(fnmatch.fnmatch(x, pattern) for pattern in patterns)}
    assert name == "owner/model" and taken == names - {"answers.json"}
    download.side_effect = OSError("no network\nat all")
    message = "owner/model cannot be downloaded from the Hub (no network at all)"
    refused(["import", "owner/model", tmp_path / "2"], message)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(["import", "owner/model", tmp_path / "2"], "pip install huggingface_hub")
