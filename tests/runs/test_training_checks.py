"""What can be wrong with a training is said before TensorFlow and the corpus are loaded."""

import dataclasses
import json
import shutil

import pytest

import keras_transformer as kt
from keras_transformer.data.pairs import fingerprint
from keras_transformer.data.text_files import load_corpus
from keras_transformer.runs.run import CONFIG, DATA, Run, from_yaml, to_yaml
from keras_transformer.runs.training_data import check_training
from tests.support.command_line import sentences_before_tensorflow
from tests.support.paths import FIXTURES

RUN = str(FIXTURES / "format-1" / "run")  # of a vocabulary of characters, all embeddings shared


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one {i}\teins {i}\n" for i in range(20)))
    return str(path)


def mistakes(folder, text):
    """Wrong command lines, and what the sentence must say."""
    out, run = ["--output", f"{folder}/new"], f"{folder}/run"
    texts = ["--train-source", text, "--valid-source", text]
    begun = dataclasses.replace(Run(RUN).read_config(), train_source=text, valid_source=text)
    Run(shutil.copytree(RUN, run)).write_config(begun)
    with open(f"{folder}/tiny.yaml", "w") as file, open(f"{folder}/few.yaml", "w") as other:
        file.write(to_yaml(kt.PRESETS["tiny"]))
        other.write("format: 1\nepochs: 3\n")
    relative = [*out, *texts, "--positions"]
    return [
        ([*out, "--preset", "tinny"], "Unknown preset 'tinny'"),
        ([*out, "--preset", "tiny"], "Training data is missing: pass --train-source"),
        ([*out, "--preset", "small", "--no-dates"], "Training data is missing"),
        ([*out, "--no-dates"], "Training data is missing"),
        ([*out, "--config", f"{folder}/tiny.yaml"], "Training data is missing"),
        ([*out, "--config", f"{folder}/few.yaml"], "Training data is missing"),
        ([*out, *texts, "--train-target", text], "has both source and target: omit --train-target"),
        ([*out, *texts, "--valid-target", text], "has both source and target: omit --valid-target"),
        (
            [*out, "--train-source", "/none", "--train-target", text, *texts[2:]],
            "No file matches /none",
        ),
        ([*out, "--preset", "tiny", "--config", "x"], "leave out one of the two"),
        ([*out, "--config", "/none.yaml"], "/none.yaml cannot be read"),
        ([*out, "--train-source", text], "--valid-source is missing"),
        ([*out, "--valid-source", text], "Training data is missing"),
        ([*out, *texts[:3], "/none.tsv"], "No file matches /none.tsv"),
        (
            [*out, *texts[:2], "--valid-source", RUN, "--valid-target", "/none"],
            "No file matches /none",
        ),
        ([*out, *texts, "--preset", "tiny", "--bleu-tokenize", "x"], "no tokenizer 'x'"),
        ([*out, *texts, "--strategy", "all"], "strategy must be one of auto"),
        ([*out, *texts, "--num-heads", "3"], "num_heads must divide"),
        ([*out, *texts, "--norm", "late"], "norm must be one of post, pre"),
        ([*out, *texts, "--positions", "rope"], "positions must be one of sinusoidal, learned"),
        (
            [*out, *texts, "--positions", "rotary", "--d-model", "20"],
            "key_dim must be even for rotary positions, received 5",
        ),
        ([*out, *texts, "--max-distance", "4"], "positions='sinusoidal': leave out max_distance"),
        ([*relative, "relative", "--max-distance", "0"], "max_distance must be a positive"),
        ([*relative, "bucketed", "--max-distance", "16"], "must be greater than 16"),
        ([*relative, "alibi"], "positions must be one of sinusoidal, learned"),
        ([*out, *texts, "--learning-rate", "-1"], "learning_rate must be a number above 0"),
        ([*out, *texts, "--seed", "-1"], "seed must be at least 0"),
    ]


def mistakes_about_runs(folder, text):
    """The same for a run to resume or to start from; after `mistakes`."""
    out, run = ["--output", f"{folder}/new"], f"{folder}/run"
    texts = ["--train-source", text, "--valid-source", text]
    start = [*out, "--start-from", run]
    return [
        (["--output", run], "is not empty"),
        (["--output", "/none", "--resume"], "/none is not a run directory"),
        (["--output", run, "--resume", "--seed", "2"], "seed must be 1 to resume"),
        (["--output", run, "--resume", "--d-model", "6"], "d_model must be 8 to resume"),
        (
            ["--output", run, "--resume", "--positions", "rotary"],
            "positions must be 'sinusoidal' to resume",
        ),
        (["--output", run, "--resume", "--freeze", "encoder"], "--freeze needs --start-from"),
        (
            [*start, *texts, "--positions", "none"],
            "positions must be 'sinusoidal' with --start-from",
        ),
        ([*start, *texts, "--d-ff", "3"], "d_ff must be 16 with --start-from"),
        ([*start, *texts, "--model-type", "bpe", "--vocabulary-size", "300"], "vocabulary_size"),
        ([*start], "--train-source is missing: give the text to fine-tune on"),
        ([*start, *texts, "--freeze", "source-embeddings"], "would also freeze the softmax"),
        ([*start, *texts, "--freeze", "softmax"], "freeze must be one of encoder, decoder"),
        ([*out, *texts, "--start-from", "/none"], "/none is not a run directory"),
    ]


def mistakes_about_words(folder, text):
    """The same for vocabularies and word vectors; after `mistakes`."""
    out = ["--output", f"{folder}/new"]
    texts = ["--train-source", text, "--valid-source", text]
    start = [*out, "--start-from", f"{folder}/run"]
    vectors, vocabulary = f"{folder}/vectors", f"{folder}/vocab.txt"
    with open(vectors, "w") as file, open(vocabulary, "w") as other:
        file.write("fox 0.1 0.2\n")
        other.write("[UNK]\nfox\nfox\n")
    own = [*out, *texts, "--preset", "tiny"]
    apart = [*own, "--share-embeddings", "target", "--d-model", "8"]
    return [
        ([*own, "--source-vocabulary-size", "60"], "needs separate vocabularies"),
        ([*own, "--source-vocabulary", vocabulary], "must be the same file for a joint vocabulary"),
        ([*apart, "--source-vocabulary", vocabulary], "'fox' is duplicated"),
        ([*apart, "--target-vocabulary", "/none"], "/none cannot be read (No such file"),
        ([*apart, "--target-vocabulary-size", "60"], "vocabulary_size must be greater than 260"),
        (
            [*apart, "--model-type", "wordpiece", "--vocabulary-size", "none"],
            "vocabulary_size must be an integer",
        ),
        (
            [*apart, "--source-vocabulary", vocabulary, "--source-vocabulary-size", "9"],
            "has a size: leave out --source-vocabulary-size",
        ),
        (
            [*apart, "--source-vectors", vectors],
            "must have lines of a word and 8 numbers, the width of the embedding, received",
        ),
        ([*apart, "--target-vectors", text], "pairs.tsv must have lines of a word and 8 numbers"),
        (
            [*own, "--source-vectors", vectors, "--target-vectors", vectors],
            "cannot be used with --share-embeddings all",
        ),
        (
            [*start, *texts, "--source-vectors", vectors],
            "--source-vectors and --start-from",
        ),
        (
            [*start, *texts, *["--source-vocabulary", vocabulary] * 1],
            "must be the same file for a joint",
        ),
    ]


def test_mistakes_are_said_without_tensorflow(tmp_path, text):
    kinds = mistakes, mistakes_about_runs, mistakes_about_words
    everything = [mistake for kind in kinds for mistake in kind(tmp_path, text)]
    commands, sentences = zip(*everything, strict=True)
    before = sorted(tmp_path.rglob("*"))
    said = sentences_before_tensorflow([["train", *command] for command in commands])
    assert len(said) == len(sentences), said
    pairs = zip(said, sentences, strict=True)
    wrong = [x for x in pairs if not x[0].startswith("keras-transformer: ") or x[1] not in x[0]]
    assert not wrong
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def test_dates_are_for_who_asks_for_them(tmp_path):
    """By their preset, also from a file; by an option; and by a run that was trained on them."""
    dates, tiny = kt.PRESETS["dates"], kt.PRESETS["tiny"]
    (tmp_path / "dates.yaml").write_text(to_yaml(dates))
    asked = dict(dates=True), dict(languages=("de",))
    for config in (
        *(dates, from_yaml(tmp_path / "dates.yaml")),
        *(dataclasses.replace(tiny, **options) for options in asked),
    ):
        check_training(config, tmp_path / "new")
    assert load_corpus(dataclasses.replace(tiny, dates=True)).train == load_corpus(dates).train


def test_a_run_on_dates_of_an_earlier_version_goes_on(tmp_path):
    lines = to_yaml(kt.PRESETS["dates"]).splitlines(keepends=True)
    earlier = [line for line in lines if not line.startswith("dates:")]
    assert len(earlier) == len(lines) - 1
    (tmp_path / CONFIG).write_text("".join(earlier))
    for config in (Run(tmp_path).read_config(), kt.PRESETS["dates"]):
        check_training(config, tmp_path, resume=True)


def test_what_may_change_when_a_run_goes_on(tmp_path, text):
    begun = dataclasses.replace(kt.PRESETS["dates"], train_source=text, valid_source=text)
    Run(tmp_path).write_config(begun)
    changes = dict(epochs=99, cooldown_steps=9, patience=3, bleu_tokenize="none", log_every=1.0)
    changes |= dict(strategy="mirrored", logical_devices=2)
    other = shutil.copy(text, tmp_path / "moved.tsv")
    changes |= dict(precision="auto", parallel_microbatches=2, train_source=str(other))
    changes |= dict(dates=False)  # of no matter with text
    check_training(dataclasses.replace(begun, **changes), tmp_path, resume=True)


def test_text_is_known_by_its_fingerprint(tmp_path, text):
    config = kt.TrainConfig(train_source=text, valid_fraction=0.2)
    corpus = load_corpus(config)
    data = {"train": fingerprint(corpus.train), "valid": fingerprint(corpus.valid)}
    Run(tmp_path).check_same_text(data)  # nothing is known of it
    (tmp_path / DATA).write_text(json.dumps(data))
    Run(tmp_path).check_same_text(data)
    with pytest.raises(ValueError, match="The train text must be that of"):
        Run(tmp_path).check_same_text(data | {"train": fingerprint(corpus.train[1:])})
    with pytest.raises(ValueError, match="The valid text must be that of"):
        Run(tmp_path).check_same_text(data | {"valid": data["train"]})


def test_a_fine_tuned_run_may_have_another_dropout(tmp_path, text):
    begun = Run(RUN).read_config()
    model = dataclasses.replace(begun.model, dropout=0.3)
    config = dataclasses.replace(
        begun, model=model, start_from=RUN, train_source=text, valid_source=text
    )
    check_training(config, tmp_path / "new")


def test_rdrop_is_a_number(text, tmp_path):
    model = dataclasses.replace(kt.get_preset("tiny").model, dropout=0.0)
    config = dataclasses.replace(
        kt.get_preset("tiny"), train_source=text, valid_source=text, model=model, rdrop=1.0
    )
    with pytest.raises(ValueError, match="rdrop must be a number of at least 0"):
        dataclasses.replace(config, rdrop=float("nan"))
