"""Imported runs are runs like any other: their search, export, fine-tuning; what they have not."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.presets import SearchConfig
from keras_transformer.runs.opening import _warn_of_missing_tag
from keras_transformer.runs.run import Run
from tests.support.command_line import refused, run
from tests.support.marian_models import FOLDER, SENTENCES, TAGS

LINES = [*SENTENCES["source"][:4], "", ">>fra<< A man."]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    result = run("import", FOLDER / "tied", folder / "run")
    assert result.returncode == 0, result.stderr.decode()
    return folder, result


def translate(path, *options):
    result = run("translate", path, *options, stdin="\n".join(LINES).encode() + b"\n")
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_what_is_printed_and_recorded(imported):
    folder, result = imported
    assert result.stdout.decode().strip() == str(folder / "run")
    printed = result.stderr.decode()
    assert "licence cc-by-4.0" in printed
    assert "begin each source with one of 2 language tags: >>deu<<, >>fra<<\n" in printed
    config = Run(folder / "run").read_config()
    origin = config.imported
    assert (origin.source, origin.licence, origin.beam_size) == ("tied", "cc-by-4.0", 4)
    assert origin.language_tags == TAGS
    assert re.fullmatch("[0-9a-f]{64}", origin.sha256)
    assert (config.model.epsilon, config.model.depths, config.model.dropout) == (1e-5, (2, 1), 0.1)
    described = Run(folder / "run").describe()
    assert described["imported"]["source"] == "tied" and described["recipe"] == {}


def warnings_of(path, *lines):
    """What `translate` prints about language tags, as in a process of its own."""
    _warn_of_missing_tag.cache_clear()
    result = run("translate", path, stdin="\n".join(lines).encode())
    assert result.returncode == 0
    return result.stderr.decode().count("warning: a source has no language tag, such as >>deu<<")


def test_a_source_without_a_language_tag_gets_one_warning(imported):
    path = imported[0] / "run"
    assert warnings_of(path, ">>fra<< A man.", "", "  >>deu<< Two dogs.") == 0
    assert warnings_of(path, ">>fra<< A man.", "A man.", "Two dogs.") == 1
    assert b"warning" not in run("translate", path, stdin=b"A man.").stderr, "once per process"


def test_its_own_search_is_the_default(imported):
    path = imported[0] / "run"
    search = SearchConfig(4, 1.0, length_norm="length", max_output_length=31)
    translator = kt.load(path)
    assert translator.default_search == search
    own, greedy = translate(path), translate(path, "--beam-size", "1")
    assert own == translator.translate(LINES) == translator.translate(LINES, search=search)
    assert greedy == translator.translate(LINES, search=SearchConfig(max_output_length=31))
    assert own != greedy
    assert kt.ExportConfig.for_search(translator.default_search).beam_size == 4  # kt.export's
    longer = dataclasses.replace(search, beam_size=6)
    assert translate(path, "--beam-size", "6") == translator.translate(LINES, search=longer)
    assert len(translate(path, "--sample", "--n-best", "2")) == 2 * len(LINES)


def test_evaluate_uses_it_and_does_not_fall_back_to_the_dates(imported):
    folder = imported[0]
    (folder / "source").write_text("\n".join(LINES[:4]) + "\n")
    (folder / "target").write_text("\n".join(translate(folder / "run")[:4]) + "\n")
    files = "--source", folder / "source", "--target", folder / "target"
    result = run("evaluate", folder / "run", *files, "--json", "--n-bootstrap", "0")
    assert json.loads(result.stdout)["exact_match"] == 100.0
    refused(["evaluate", folder / "run"], "--source is missing")
    out = "--output", folder / "tuned"
    refused(["train", "--start-from", folder / "run", *out], "--train-source is missing")


def test_what_imported_runs_do_not_have(imported):
    folder = imported[0]
    refused(["average", folder / "run", folder / "mean"], "has no checkpoints")
    refused(["train", "--resume", "--output", folder / "run"], "is an imported model")
    refused(["import", FOLDER / "tied", folder / "run"], "is not empty")


def test_pad_and_start_are_never_produced(imported):
    model = kt.load(imported[0] / "run").model
    source = np.random.default_rng(1).integers(4, 100, (64, 9))
    tokens, lengths, _ = kt.search(
        model.make_step(), model.initial_state(source), 64, 20, sample=True, temperature=20.0
    )
    tokens, lengths = np.array(tokens)[:, 0], np.array(lengths)[:, 0]
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    assert not np.isin(tokens[inside], [kt.PAD, kt.START]).any()
    assert (tokens[inside] == kt.UNK).any()  # which the configuration does not forbid
    assert len(np.unique(tokens)) > 50


def test_export_gives_the_same_texts(imported):
    folder = imported[0]
    result = run("export", folder / "run", folder / "export", "--signatures", "beam")
    assert result.returncode == 0, result.stderr.decode()
    card = json.loads((folder / "export" / "1" / "model.json").read_text())
    assert card["imported"]["source"] == "tied"
    assert warnings_of(folder / "export", "A man.") == 1
    beam = {key: card["signatures"]["beam"][key] for key in ("beam_size", "length_norm")}
    assert beam == {"beam_size": 4, "length_norm": "length"}
    assert translate(folder / "export", "--beam-size", "4") == translate(folder / "run")
    assert translate(folder / "export") == translate(folder / "run", "--beam-size", "1")
    assert card["imported"]["licence"] == "cc-by-4.0"


def test_a_prefix_token_is_put_before_every_source(imported):
    folder = imported[0]
    small = "--signatures", "tokens"
    options = "--prefix-token", ">>fra<<", *small
    result = run("export", folder / "run", folder / "french", *options)
    assert result.returncode == 0, result.stderr.decode()
    card = json.loads((folder / "french" / "1" / "model.json").read_text())
    assert (card["prefix_token"], card["max_output_length"]) == (">>fra<<", 31)
    assert warnings_of(folder / "french", "A man.") == 0
    french, _ = kt.load_saved_model(folder / "french")(["A man.", ""])
    translator = kt.load(folder / "run")
    greedy = SearchConfig(max_output_length=31)
    assert french == translator.translate([">>fra<< A man.", ""], search=greedy)
    assert french != translator.translate(["A man.", ""], search=greedy)
    for token in (">>xxx<<", "A man", ""):
        wrong = kt.ExportConfig(prefix_token=token, signatures=())
        with pytest.raises(ValueError, match="prefix_token must be one token of the source"):
            kt.export(translator, folder / "wrong", config=wrong)


def test_fine_tuning(imported):
    folder = imported[0]
    pairs = [f"{a}\t{b}\n" for a, b in zip(SENTENCES["source"], SENTENCES["target"], strict=True)]
    (folder / "pairs.tsv").write_text("".join(pairs * 6))
    data = "--train-source", folder / "pairs.tsv", "--valid-source", folder / "pairs.tsv"
    speed = "--learning-rate", "0.003", "--warmup-steps", "10", "--parallel-microbatches", "1"
    common = *data, *speed, "--steps-per-epoch", "12", "--tokens-per-batch", "512"
    start = ["train", "--start-from", folder / "run", "--weight-decay", "0.1", "--ema", "0.5"]
    whole = run(*start, "--output", folder / "tuned", *common, "--epochs", "2")
    assert whole.returncode == 0, whole.stderr.decode()
    history = Run(folder / "tuned").read_history()
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert Run(folder / "tuned").read_config().imported.source == "tied"
    before, after = (kt.load(folder / name).model for name in ("run", "tuned"))
    np.testing.assert_array_equal(after.suppressed, before.suppressed)
    for name in ("embeddings", "output_bias"):
        old, new = (getattr(model.target_embedding, name) for model in (before, after))
        assert not np.array_equal(old, new)
    # In two parts, with the same result.
    half = run(*start, "--output", folder / "parts", *common, "--epochs", "1")
    assert half.returncode == 0, half.stderr.decode()
    rest = run("train", "--resume", "--output", folder / "parts", "--epochs", "2")
    assert rest.returncode == 0, rest.stderr.decode()
    parts = kt.load(folder / "parts").model.get_weights()
    for one, other in zip(after.get_weights(), parts, strict=True):
        np.testing.assert_array_equal(one, other)
    result = run("average", folder / "tuned", folder / "mean", "--number", "1")
    assert result.returncode == 0, result.stderr.decode()


def test_the_tensors_decide_what_is_shared(tmp_path):
    folder = shutil.copytree(FOLDER / "untied", tmp_path / "model")
    options = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(options | {"tie_word_embeddings": True}))
    options = json.loads((folder / "generation_config.json").read_text())
    options |= {"no_repeat_ngram_size": 3}
    (folder / "generation_config.json").write_text(json.dumps(options))
    result = run("import", folder, tmp_path / "run")
    assert result.returncode == 0
    notes = result.stderr.decode()
    assert "no_repeat_ngram_size 3 of the configuration is ignored" in notes
    kt.import_model(FOLDER / "untied", tmp_path / "other")
    weights = [kt.load(tmp_path / name).model.get_weights() for name in ("run", "other")]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
