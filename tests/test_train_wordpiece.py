"""WordPiece in trainings: learned, taken from a file, prepared, resumed, started from, averaged."""

import dataclasses
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.averaging import average
from keras_transformer.runs.opening import Opened
from keras_transformer.runs.run import Run
from keras_transformer.runs.run_callbacks import summarize_training
from keras_transformer.runs.training_data import open_data
from keras_transformer.special_ids import UNK
from keras_transformer.tokenizers import saved
from keras_transformer.train import train
from tests.support.reversed_text import MODEL, config_of


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A vocabulary of a file on one side, one learned on the other."""
    folder = tmp_path_factory.mktemp("corpus")
    options = dict(vocabulary_size=36, model_type="wordpiece", target_vocabulary_size=38)
    options |= dict(tokens_per_batch=512, warmup_steps=10)
    options["model"] = dataclasses.replace(MODEL, share_embeddings="target")
    config = config_of(folder, 200, 30, **options)
    with open(config.train_source, encoding="utf-8") as file:
        pieces = saved.open_model(kt.WordPieceTokenizer.train(file, 40).model)
    names = [piece.decode() for piece in pieces.pieces(range(40)).numpy()]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*names[1:30], "[MASK]", *names[30:]]))
    return dataclasses.replace(config, source_vocabulary=str(vocabulary))


def test_the_summary_of_a_training(config, tmp_path):
    sizes = dict(vocabulary_size=None, target_vocabulary_size=None)
    config = dataclasses.replace(config, model_type="char", patience=1, clip_norm=0.5, **sizes)
    data = open_data(config, Run(tmp_path), resume=False)
    sizes = [tokenizer.vocabulary_size for tokenizer in data.tokenizers]
    model = kt.Transformer(*sizes, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    model.build()
    lines = summarize_training(config, data, model, 7, "runs/new").splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["pairs"] == "200, for validation 30"
    assert rows["vocabulary"] == f"source wordpiece, 41 tokens; target char, {sizes[1]} tokens"
    assert rows["parameters"] == f"{model.count_params():,}"
    assert rows["steps"] == "2 epochs of 7 steps"
    options = f"train_source {config.train_source}, ", ", patience 1", "clip_norm 0.5"
    assert all(option in rows["options"] for option in options)
    assert rows["output"] == "runs/new"


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    return output, train(config, output)


def test_run_holds_wordpiece(run, config):
    output, _ = run
    assert {"source.wordpiece", "target.wordpiece"} <= {path.name for path in output.iterdir()}
    source, target = saved.load(output)
    assert (source.vocabulary_size, target.vocabulary_size) == (41, 38)
    assert source.file_ids(range(5)).numpy().tolist() == [-1, 0, 1, 2, 3]
    assert Run(output).has_model and Opened(output).detokenizing_losses(["ba di"]) == ""
    losses = Opened(output).detokenizing_losses(["ba di", "ba[di"])
    assert losses.startswith("1 of 2 lines") and "changes: '[' 1)" in losses
    translator = kt.load(output)
    assert translator.source_tokenizer("ba [MASK] di").numpy().tolist().count(UNK) >= 1
    assert len(translator.translate(["ba ce di", "kala melo", "di"])) == 3
    recipe = translator.card["recipe"]
    assert "source_vocabulary" not in recipe and recipe["model_type"] == "wordpiece"


def test_it_is_resumed_started_from_and_averaged(run, config, tmp_path):
    """The file of the vocabulary may be gone by then."""
    output, history = run
    gone = dataclasses.replace(config, source_vocabulary=str(tmp_path / "gone.txt"))
    half = train(dataclasses.replace(config, epochs=1), tmp_path / "half")
    Run(tmp_path / "half").write_config(dataclasses.replace(gone, epochs=1))
    rest = train(gone, tmp_path / "half", resume=True)
    np.testing.assert_allclose(half["loss"] + rest["loss"], history["loss"], rtol=1e-5)
    average(output, tmp_path / "mean", 1, "last")
    assert saved.read(tmp_path / "mean") == saved.read(output)
    fresh = dataclasses.replace(config, source_vocabulary=None, start_from=str(output), epochs=1)
    tuned = open_data(fresh, Run(tmp_path / "tuned"), resume=False).tokenizers
    assert [tokenizer.model for tokenizer in tuned] == list(saved.read(output))


def test_a_prepared_corpus_gives_the_run_of_its_text(run, config, tmp_path):
    names = {field.name for field in dataclasses.fields(kt.PrepareConfig)}
    same = {name: value for name, value in vars(config).items() if name in names}
    prepared = kt.PrepareConfig(**same, joint_vocabulary=False)
    for processes in (1, 2):
        kt.prepare(prepared, tmp_path / str(processes), processes=processes)
    assert [(path.name, path.read_bytes()) for path in sorted((tmp_path / "1").iterdir())] == [
        (path.name, path.read_bytes()) for path in sorted((tmp_path / "2").iterdir())
    ]
    corpus = kt.PreparedCorpus(tmp_path / "1")
    assert saved.read(tmp_path / "1") == saved.read(run[0])
    assert "source_vocabulary" not in corpus.options
    text = dict.fromkeys(("train_source", "train_target", "source_vocabulary"))
    output = tmp_path / "run"
    history = train(dataclasses.replace(config, **text, corpus=(str(tmp_path / "1"),)), output)
    assert history == run[1]
    # Another vocabulary is another corpus.
    other = tmp_path / "other.txt"
    shutil.copy(config.source_vocabulary, other)
    other.write_text(other.read_text().replace("[MASK]", "[unused]"))
    kt.prepare(dataclasses.replace(prepared, source_vocabulary=str(other)), tmp_path / "other")
    files = [kt.PreparedCorpus(tmp_path / name).manifest["files"] for name in ("1", "other")]
    assert files[0]["source.wordpiece"] != files[1]["source.wordpiece"]
