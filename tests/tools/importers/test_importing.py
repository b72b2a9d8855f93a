"""`import` takes folders, zips and names on the Hub; imported runs are runs like any other."""

import dataclasses
import functools
import hashlib
import http.server
import json
import re
import shutil
import sys
import threading

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.run import Run
from keras_transformer.runs.training_data import check_training
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.translation.text_model import TextModel
from tests.support.command_line import refused, succeeds
from tests.support.layer_harness import assert_equal
from tests.support.marian_models import SENTENCES, TAGS
from tests.support.toy_translator import serve_eagerly
from tests.tools.importers.conftest import MARIAN, edit, weights_of, write_zip

LINES = [*SENTENCES["source"][:2], "", "A man."]
TAGGED = [f">>fra<< {line}" if line else "" for line in LINES]
SEARCH = kt.SearchConfig(4, 1.0, 2.0, "length", max_output_length=31)


@pytest.fixture
def translator(imported, monkeypatch):
    monkeypatch.setattr(TextModel, "run_eagerly", True)
    translator = kt.load(imported / "run", "float32")
    translator.run_eagerly = True
    return translator


def test_what_is_printed_and_recorded(imported):
    printed = (imported / "printed").read_text(encoding="utf-8")
    assert "licence cc-by-4.0" in printed
    assert "2 languages, chosen by --target-language, such as deu, fra\n" in printed
    config = Run(imported / "run").read_config()
    origin = config.imported
    assert (origin.source, origin.licence, origin.beam_size) == ("tied", "cc-by-4.0", 4)
    assert origin.language_tags == TAGS
    assert re.fullmatch("[0-9a-f]{64}", origin.sha256)
    assert (config.model.epsilon, config.model.depths, config.model.dropout) == (1e-5, (2, 1), 0.1)
    described = Run(imported / "run").describe()
    assert described["imported"]["source"] == "tied" and described["recipe"] == {}


def translate(path, lines, *options):
    stdin = "".join(f"{x}\n" for x in lines).encode()
    return succeeds("translate", path, *options, stdin=stdin).stdout.decode().splitlines()


def test_its_own_search_is_the_default_and_a_missing_tag_an_error(imported, translator):
    assert translator.default_search == SEARCH
    expected = translator.translate(TAGGED)
    assert translate(imported / "run", TAGGED) == expected
    assert translate(imported / "run", LINES, "--target-language", "fra") == expected
    assert expected == translator.translate(TAGGED, search=SEARCH)
    assert expected != translator.translate(TAGGED, search=kt.SearchConfig(max_output_length=31))
    message = "2 languages: give the target_language, such as deu, fra"
    refused(["translate", imported / "run"], message, stdin=LINES[0].encode())
    with pytest.raises(ValueError, match="begins with the token of a language, '>>fra<<"):
        translator.translate([b">>fra<< \xff", *TAGGED], target_language="deu")
    with pytest.raises(ValueError, match="chooses the target's language only"):
        translator.translate(LINES, source_language="fra")
    assert kt.ExportConfig.for_search(translator.default_search).beam_size == 4  # kt.export's


def test_an_export_of_one_target_language(imported, translator, tmp_path, untried):
    options = "--target-language", "fra", "--signatures", "beam"
    succeeds("export", imported / "run", tmp_path, *options)
    card = json.loads((tmp_path / "1" / "model.json").read_text())
    assert (card["imported"]["source"], card["imported"]["licence"]) == ("tied", "cc-by-4.0")
    assert card["languages"] == {"codes": ["deu", "fra"], "inputs": [], "target_language": "fra"}
    beam = card["signatures"]["beam"]
    assert (beam["beam_size"], beam["beam_patience"], card["max_output_length"]) == (4, 2.0, 31)
    assert translate(tmp_path, LINES, "--beam-size", "4") == translator.translate(TAGGED)
    names = dict(target_language="fra", max_output_length=31, signatures=("tokens",))
    ids = translator.source_tokenizer(LINES[:2]).to_tensor().numpy()
    found = serve_eagerly(translator, kt.ExportConfig(**names), "tokens", ids=ids)["ids"]
    texts = translator.target_tokenizer.detokenize(found).numpy()
    expected = translator.translate(TAGGED[:2], search=kt.SearchConfig(max_output_length=31))
    assert [text.decode() for text in texts] == expected


def test_fine_tuning(imported, translator, tmp_path):
    options = "--learning-rate 0.003 --warmup-steps 2 --parallel-microbatches 1 --epochs 1"
    options += " --steps-per-epoch 3 --tokens-per-batch 512"
    files = "--train-source", MARIAN / "sentences.tsv", "--valid-source", MARIAN / "sentences.tsv"
    start = ["train", "--start-from", imported / "run", *options.split(), *files]
    succeeds(*start, "--output", tmp_path / "tuned")
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
    refused(["import", MARIAN / "tied", path], "is not empty")
    refused(["evaluate", path], "--source is missing")  # they do not fall back to the dates
    start = ["train", "--output", tmp_path / "tuned", "--start-from"]
    refused([*start, path], "--train-source is missing")
    for words in (["translate"], start):
        remedy = f"make a run of it by keras-transformer import {MARIAN / 'tied'} RUN"
        refused([*words, MARIAN / "tied"], remedy)


def test_a_corpus_for_a_default_language(imported, tmp_path):
    run = kt.import_model(MARIAN / "tied", tmp_path / "run", target_language="fra")
    text, corpus = tmp_path / "text.tsv", str(tmp_path / "corpus")
    options = dict(corpus=(corpus,), start_from=str(run), target_language="fra")
    config = dataclasses.replace(run.read_config(), **options)

    def prepare(vocabularies):
        shutil.rmtree(corpus, ignore_errors=True)
        names = str(text), None, str(text), None
        kt.prepare(kt.PrepareConfig(*names, vocabularies=str(vocabularies)), corpus)

    text.write_text("A man.\tUn homme.\n")
    prepare(imported / "run")
    with pytest.raises(ValueError, match="without languages: prepare it with --target-language"):
        check_training(config, tmp_path / "new")
    prepare(run)
    check_training(config, tmp_path / "new")
    ids = kt.PreparedCorpus(corpus).pairs.source.gather(np.arange(1))[0]
    assert ids[0] == kt.load(run).language_rows(["A man."])[0, 0]
    text.write_text(">>deu<< A man.\tEin Mann.\n")
    with pytest.raises(ValueError, match="begins with the token of a language, '>>deu<< A man"):
        prepare(run)


def files_of(folder, inside=""):
    return {inside + file.name: file.read_bytes() for file in folder.iterdir()}


def test_zips_are_their_folders(folder, tmp_path):
    mac = {f"__MACOSX/top/._{x.name}": b"\0\5\x16\7" for x in folder.iterdir()}
    other = {"top/onnx/config.json": "{}", "top/.DS_Store": b"\0", "top/": b""}
    path = write_zip(tmp_path / "some.zip", files_of(folder, "top/") | mac | other)
    assert kt.import_model(path, tmp_path / "run").read_config().imported.source == "some"
    assert_equal(kt.load(tmp_path / "run").model.get_weights(), weights_of(folder))
    refused(["translate", path], f"keras-transformer import {path} RUN")
    edit(folder / "config.json", d_model=8)
    path = write_zip(tmp_path / "some.zip", files_of(folder))
    refused(["import", path, tmp_path / "2"], f"keras-transformer: {path}/model.safetensors: ")
    path = write_zip(tmp_path / "two.zip", files_of(folder, "a/") | {"b/model.npz": b""})
    refused(["import", path, tmp_path / "2"], f"{path} must be the zip of one model")


def test_zips_that_leave_their_folder(tmp_path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "opus.zip"
    for name in ("../model.npz", f"{tmp_path}/model.npz", "a/../../model.npz", "..\\model.npz"):
        write_zip(path, {name: b""})
        refused(["import", path, tmp_path / "run"], "opus.zip")
    assert [x.name for x in tmp_path.iterdir()] == ["in"]


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


@pytest.mark.parametrize("name", ["source.spm", "vocab.json"])
def test_files_that_are_missing_or_truncated(name, folder):
    path = folder / name
    for content in (path.read_bytes()[: path.stat().st_size // 2], None):
        path.write_bytes(content) if content else path.unlink()
        with pytest.raises(ValueError, match=name):
            read_source(folder)


COMMIT = "0" * 40


class Hub(http.server.SimpleHTTPRequestHandler):
    """Answers as the Hub does, with the files of a folder."""

    def end_headers(self):
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", hashlib.sha256(self.path.encode()).hexdigest())
        super().end_headers()

    def log_message(self, *_):
        pass


def test_a_model_by_its_name_on_the_hub(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    hub, cache, described = (tmp_path / x for x in ("hub", "cache", "hub/api/models/owner/model"))
    shutil.copytree(MARIAN / "tied", hub / "owner" / "model" / "resolve" / COMMIT)
    sizes = [(path.name, path.stat().st_size) for path in (MARIAN / "tied").iterdir()]
    names = {name for name, _ in sizes}
    about = {"id": "owner/model", "sha": COMMIT, "siblings": [{"rfilename": x} for x in names]}
    tree = [{"type": "file", "path": name, "size": size, "oid": COMMIT} for name, size in sizes]
    for place, content in (("revision/main", about), (f"tree/{COMMIT}", tree)):
        (described / place).parent.mkdir(parents=True)
        (described / place).write_text(json.dumps(content))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    serve = functools.partial(Hub, directory=hub)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        files = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        new = kt.import_model("owner/model", tmp_path / "run")
        words = ["import", "owner/other", tmp_path / "2"]
        refused(words, "owner/other cannot be downloaded from the Hub: check the network")
        server.shutdown()
    assert new.read_config().imported.source == "owner/model"
    assert {path.name for path in cache.glob("*/snapshots/*/*")} == names - {"answers.json"}
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(["import", "owner/model", tmp_path / "2"], "pip install huggingface_hub")
