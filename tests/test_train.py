"""A training leaves a complete run directory, and goes on where it stopped."""

import dataclasses
import json
import os
import shutil
import sys

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs import training_data
from keras_transformer.runs.averaging import average
from keras_transformer.runs.opening import Opened
from keras_transformer.runs.run import DATA, Run
from keras_transformer.runs.run_callbacks import RunCheckpoint
from keras_transformer.runs.training_data import check_training, open_data, train_tokenizers
from keras_transformer.tokenizers import saved
from keras_transformer.train import _compile_model, train
from tests.support.command_line import run
from tests.support.layer_harness import assert_equal
from tests.support.paths import PATTERN
from tests.support.reversed_text import config_of


def test_run_directory_is_complete(trained_run, trained_config):
    names = {"model.keras", "source.spm", "target.spm", "config.yaml", "history.csv"}
    names |= {"logs", "checkpoints", "data.json", "model.json", "examples.json"}
    assert {entry.name for entry in trained_run.iterdir()} == names
    logs = [name for _, _, files in os.walk(trained_run / "logs") for name in files]
    assert any("tfevents" in name for name in logs)
    assert Run(trained_run).read_config() == trained_config
    # One checkpoint, here the best is the last too, what to resume from, and the state.
    (kept,) = Run(trained_run).read_state()["checkpoints"]
    assert (kept["file"], kept["epoch"]) == ("000003.weights.h5", 3)
    names = {kept["file"], "000003-00000000.safetensors", "resume.json", "lock"}
    # What the point before needs, should the last one be damaged.
    names |= {"000002.weights.h5", "000002-00000000.safetensors"}
    assert {entry.name for entry in (trained_run / "checkpoints").iterdir()} == names


def test_history(trained_run, trained_config):
    """A row per validation, with totals since the training began; the loss falls."""
    rows = Run(trained_run).read_history()
    losses, valid = ([row[name] for row in rows] for name in ("loss", "val_loss"))
    assert losses[0] > losses[1] > losses[2] and valid[0] > valid[2] > 0
    assert all(row["val_bleu"] is None for row in rows)
    steps, tokens = ([row[name] for row in rows] for name in ("step", "target_tokens"))
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]] and steps[0] > 1
    with open(trained_config.train_target, encoding="utf-8") as file:
        lines = file.read().splitlines()
    in_a_pass = int(saved.load(trained_run)[1](lines).flat_values.shape[0]) + len(lines)
    assert tokens == [in_a_pass, 2 * in_a_pass, 3 * in_a_pass]
    options = {"peak": trained_config.learning_rate, "warmup_steps": trained_config.warmup_steps}
    rates = [float(kt.WarmupInverseSqrt(**options)(int(step))) for step in steps]
    assert [row["learning_rate"] for row in rows] == pytest.approx(rates, rel=1e-6)
    minutes = [row["minutes"] for row in rows]
    assert 0 < minutes[0] < minutes[1] < minutes[2]


@pytest.fixture(scope="module")
def rich_config(trained_config):
    options = dict(epochs=4, steps_per_epoch=9, accumulation_steps=2, parallel_microbatches=1)
    options |= dict(cooldown_steps=18, clip_norm=1.0, weight_decay=0.01, ema=0.8)
    return dataclasses.replace(trained_config, validate_by="bleu", keep_checkpoints=2, **options)


@pytest.fixture(scope="module")
def rich(rich_config, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / PATTERN
    return output, train(rich_config, output)


def test_options_reach_compile(rich_config):
    model = kt.Transformer(30, 30, 1, 16, 2, 32)
    _compile_model(model, dataclasses.replace(rich_config, rdrop=1.0), total_steps=36)
    assert (model.rdrop, model.clip_norm, model.accumulation_steps) == (1.0, 1.0, 2)
    optimizer = model.optimizer
    assert (optimizer.weight_decay, optimizer.get_config()["ema_momentum"]) == (0.01, 0.8)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    kept = {v.name for v in model.trainable_variables if not optimizer._use_weight_decay(v)}
    assert kept == {"bias", "beta", "gamma"}


def test_what_diverges_leaves_the_run_as_it_was(trained_run, tmp_path):
    """It stops in an epoch's second step, whose first one had too large a learning rate."""
    output = shutil.copytree(trained_run, tmp_path / "run")
    before = {name: (output / name).read_bytes() for name in ("model.keras", "history.csv")}
    options = ["--epochs", 4, "--save-every", 1, "--learning-rate", "1e30"]
    result = run("train", "--output", output, "--resume", *options)
    assert result.returncode == 3
    *_, said = result.stderr.decode().splitlines()
    assert "the loss or the gradient norm of step 2 of epoch 4 is not finite" in said
    assert "a smaller learning rate (--learning-rate)" in said
    assert said.endswith("; --resume continues from the end of epoch 3.")
    assert {name: (output / name).read_bytes() for name in before} == before
    assert Run(output).read_state()["epoch"] == 3


def assert_weights_are(model, path):
    weights = model.get_weights()
    model.load_weights(path)
    assert_equal(weights, model.get_weights())


def test_model_is_the_best(rich, rich_config):
    """The last one, as the rate falls to nothing: the running mean that was validated."""
    output, history = rich
    rates = [row["learning_rate"] for row in Run(output).read_history()]
    assert rates[1] > rates[2] > rates[3] == 0
    best = int(np.argmin(history["val_loss"]))
    assert max(history["val_bleu"]) < 5 and best == 3
    model = kt.load(output).model
    assert_weights_are(model, output / "checkpoints" / "000004.weights.h5")
    assert Run(output).describe()["metrics"]["val_loss"] == history["val_loss"][best]
    kept = {entry.name for entry in output.glob("checkpoints/*.weights.h5")}
    assert kept >= {"000003.weights.h5", "000004.weights.h5"}
    pairs = kt.read_pairs(rich_config.valid_source, rich_config.valid_target)
    scores = kt.TranslationScores(pairs, *saved.load(output)).measure(model)
    assert scores["val_bleu"] == pytest.approx(history["val_bleu"][3])
    assert scores["val_chrf"] == pytest.approx(history["val_chrf"][3])


def test_average_of_a_run(rich, tmp_path, capsys):
    output, history = rich
    average(output, tmp_path / "mean", 2, "last")
    checkpoints = [output / "checkpoints" / f"{i:06}.weights.h5" for i in (3, 4)]
    kt.average_checkpoints(checkpoints, tmp_path / "mean.weights.h5")
    assert_weights_are(kt.load(tmp_path / "mean").model, tmp_path / "mean.weights.h5")
    assert Run(tmp_path / "mean").read_config() == Run(output).read_config()
    described = Run(tmp_path / "mean").describe()
    assert list(described["mean_of"]) == ["epoch 3", "epoch 4"]
    assert described["mean_of"]["epoch 4"]["val_loss"] == history["val_loss"][3]
    assert described["metrics"]["val_loss"] > history["val_loss"][3]
    assert "the mean of epoch 3, epoch 4 (val_bleu" in capsys.readouterr().err, "is worse"
    average(output, tmp_path / "best", 1)
    metrics = Run(tmp_path / "best").describe()["metrics"]
    assert metrics == pytest.approx({name: history[name][3] for name in metrics}, rel=1e-4)
    assert "the mean of" not in capsys.readouterr().err
    for options, message in (
        ({"number": 3}, "number must be from 1 to 2, .* received 3"),
        ({"number": 0}, "number must be from 1 to 2, .* received 0"),
        ({"by": "worst"}, 'by must be "best" or "last"'),
        ({"number": 2}, "is not empty"),
    ):
        with pytest.raises(ValueError, match=message):
            average(output, tmp_path / "mean", **options)


def test_what_cannot_be_trained_on_leaves_nothing(trained_config, tmp_path, monkeypatch):
    (long := tmp_path / "long.tsv").write_text(f"{'a ' * 99}\tb\n" * 27)
    for side, purpose in (("train", "learn from"), ("valid", "validate by")):
        changes = {f"{side}_source": str(long), f"{side}_target": None}
        with pytest.raises(ValueError, match=f"{purpose}: kept 0 of 27 pairs; dropped"):
            train(dataclasses.replace(trained_config, **changes), tmp_path / "run")
    with pytest.raises(FloatingPointError, match="step 2 of epoch 1 .*clip-norm\\)\\.$"):
        train(dataclasses.replace(trained_config, learning_rate=1e30), tmp_path / "run")
    monkeypatch.setattr(training_data, "MAX_IN_MEMORY", 1000)
    with pytest.raises(ValueError, match="is too large to be read .* by --corpus"):
        train(trained_config, tmp_path / "run")
    (tmp_path / "tmp.run").mkdir()  # of one that was killed while it made the directory

    def fail(*_):
        raise OSError("No space left")

    monkeypatch.undo()
    monkeypatch.setattr("keras_transformer.train.summarize_training", fail)
    with pytest.raises(OSError, match="No space left"):
        train(trained_config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == [long]


# A prepared corpus gives the same run as its text.
def prepared(config, output, **options):
    names = {field.name for field in dataclasses.fields(kt.PrepareConfig)}
    same = {name: value for name, value in vars(config).items() if name in names}
    kt.prepare(kt.PrepareConfig(**same | {"joint_vocabulary": False} | options), output)
    return str(output)


def from_corpus(config, *corpora):
    left = dict.fromkeys(("train_source", "train_target", "valid_source", "valid_target"))
    return dataclasses.replace(config, **left, source_vocabulary=None, corpus=corpora)


@pytest.fixture(scope="module")
def corpus(trained_config, tmp_path_factory):
    return prepared(trained_config, tmp_path_factory.mktemp("corpora") / "corpus")


def test_training_on_a_corpus_ends_when_patience_does(
    trained_run, trained_config, corpus, tmp_path, capsys, monkeypatch
):
    """Nothing is learned at this rate; on a terminal, Keras' progress bar is on stderr, too."""
    changes = dict(epochs=9, steps_per_epoch=2, learning_rate=1e-30, patience=2)
    stubborn = dataclasses.replace(from_corpus(trained_config, corpus), **changes)
    output = tmp_path / "run"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert len(train(stubborn, output)["loss"]) == 3
    out, said = capsys.readouterr()
    assert not out and "Epoch 3/9" in said and "best epoch 1, val_loss" in said
    model = json.loads((output / "model.json").read_text())
    assert model["metrics"] == Run(output).read_state()["history"][0]
    assert not train(stubborn, output, resume=True), "still out of patience"
    said = "run was stopped by --patience 2 after epoch 3 of 9: to continue, --resume with a larger"
    assert said in capsys.readouterr().err
    dataset = kt.make_dataset([("ba", "ba")], *saved.load(output), 256, 32)
    for patience in (2, 3):
        config = dataclasses.replace(stubborn, patience=patience)
        checkpoint = RunCheckpoint(Run(output), dataset, config)
        checkpoint.open()
        assert checkpoint.position.ended is (patience == 2)
        checkpoint.close()
    for name in ("source.spm", "target.spm", DATA):
        assert (output / name).read_bytes() == (trained_run / name).read_bytes()
    pairs_of = training_data.valid_pairs
    assert pairs_of(Run(output)) == pairs_of(Run(trained_run))
    assert corpus not in map(str, Run(output).describe()["recipe"].values())


def test_fine_tuning_on_a_corpus(trained_run, trained_config, corpus, tmp_path):
    """It is refused with other vocabularies, and starts with those of the run otherwise."""
    start = dataclasses.replace(from_corpus(trained_config, corpus), start_from=str(trained_run))
    other = prepared(trained_config, tmp_path / "other", vocabulary_sample=50)
    with pytest.raises(ValueError, match=f"prepare it with --vocabularies {trained_run}"):
        check_training(dataclasses.replace(start, corpus=(other,)), tmp_path / "run")
    taken = prepared(trained_config, tmp_path / "taken", vocabularies=str(trained_run))
    tuned = dataclasses.replace(start, corpus=(taken,))
    data = open_data(tuned, check_training(tuned, tmp_path / "run"), resume=False)
    assert [x.model for x in data.tokenizers] == list(saved.read(trained_run))


def test_a_mix_is_known_by_its_corpora_and_weights(trained_config, corpus, tmp_path):
    prints = []
    for corpora in ((corpus,), (f"{corpus}:3",), (corpus, corpus), (f"{corpus}:2", corpus)):
        data = open_data(from_corpus(trained_config, *corpora), Run(tmp_path), resume=False)
        prints.append(data.fingerprints["train"])
    assert prints[0] == prints[1], "one corpus is all of a mix"
    assert len({json.dumps(one) for one in prints}) == 3
    assert prints[2]["pairs"] == 2 * prints[0]["pairs"]


PAIRS = [(f"the {animal} sleeps", f"这只{animal}睡着了") for animal in ("cat", "hen", "cow")]


def test_each_side_has_a_size_of_its_own(capsys):
    """All words on one side, some on the other; pieces, and more than there are."""
    words = kt.TrainConfig(vocabulary_size=None, model_type="word", target_vocabulary_size=6)
    source, target = train_tokenizers(words, PAIRS)
    assert (source.vocabulary_size, target.vocabulary_size) == (4 + 5, 6)
    pieces = kt.TrainConfig(vocabulary_size=27, model_type="wordpiece", source_vocabulary_size=99)
    source, target = train_tokenizers(pieces, PAIRS)
    assert isinstance(source, kt.WordPieceTokenizer) and target.vocabulary_size == 27
    said = f"{source.vocabulary_size} ids instead of 99, the maximum for this text"
    assert 27 < source.vocabulary_size < 99 and said in capsys.readouterr().err


# WordPiece: a vocabulary of a file, with word vectors, on one side; one learned on the other.
WORDS = ["ba", "di", "kala", "melo"]
VECTORS = np.random.default_rng(3).normal(0, 0.3, (4, 16)).round(4)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    vocabulary, vectors = folder / "vocab.txt", folder / "vectors.txt"
    options = dict(vocabulary_size=36, model_type="wordpiece", target_vocabulary_size=38)
    options |= dict(tokens_per_batch=512, epochs=1, steps_per_epoch=2)
    options |= dict(learning_rate=1e-9, warmup_steps=1, source_vectors=str(vectors))
    config = config_of(folder, 200, 30, **options, source_vocabulary=str(vocabulary))
    with open(config.train_source, encoding="utf-8") as file:
        pieces = saved.open_model(kt.WordPieceTokenizer.train(file, 40).model)
    names = [piece.decode() for piece in pieces.pieces(range(40)).numpy()]
    added = [word for word in WORDS if word not in names]
    vocabulary.write_text("\n".join([*names[1:30], "[MASK]", *names[30:], *added]))
    rows = zip(WORDS, VECTORS, strict=True)
    vectors.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))
    return config, 41 + len(added)


def test_wordpiece_is_trained_resumed_started_from_and_prepared(pieces, tmp_path, capsys):
    """The files of vocabulary and vectors may be gone by then."""
    config, size = pieces
    output, gone = tmp_path / "run", str(tmp_path / "gone")
    train(config, output)
    assert capsys.readouterr().err.count("source vectors: 4 of ") == 1
    assert {"source.wordpiece", "target.wordpiece"} <= {path.name for path in output.iterdir()}
    source, target = saved.load(output)
    assert (source.vocabulary_size, target.vocabulary_size) == (size, 38)
    assert Run(output).has_model and Opened(output).detokenizing_losses(["ba di"]) == ""
    losses = Opened(output).detokenizing_losses(["ba di", "ba[di"])
    assert losses.startswith("1 of 2 lines") and "changes: '[' 1)" in losses
    translator = kt.load(output)
    embeddings = np.array(translator.model.source_embedding.embeddings)
    factors = embeddings[translator.source_tokenizer(" ".join(WORDS)).numpy()] / VECTORS
    np.testing.assert_allclose(factors, factors[0, 0], rtol=1e-3)
    recipe = translator.card["recipe"]
    assert not {"source_vocabulary", "source_vectors"} & recipe.keys()
    assert recipe["model_type"] == "wordpiece"
    longer = dataclasses.replace(config, source_vocabulary=gone, source_vectors=gone, epochs=2)
    Run(output).write_config(longer)
    again = open_data(longer, check_training(longer, output, resume=True), resume=True)
    left = dict(source_vocabulary=None, source_vectors=None, start_from=str(output))
    tuned = open_data(dataclasses.replace(config, **left), Run(tmp_path / "tuned"), resume=False)
    for data in (again, tuned):
        assert [tokenizer.model for tokenizer in data.tokenizers] == list(saved.read(output))
    corpus = prepared(config, tmp_path / "corpus")
    assert saved.read(corpus) == saved.read(output)
    assert "source_vocabulary" not in kt.PreparedCorpus(corpus).options
    check_training(from_corpus(config, corpus), tmp_path / "new")
