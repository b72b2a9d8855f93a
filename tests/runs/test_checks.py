"""What can be wrong with a training is said before TensorFlow and the corpus are loaded."""

import dataclasses
import json
import shutil

import pytest

import keras_transformer as kt
from keras_transformer.corpora.configured import load_corpus
from keras_transformer.corpora.corpus import fingerprint
from keras_transformer.runs import files
from keras_transformer.runs.checks import check_same_text, check_training
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
    begun = dataclasses.replace(files.read_config(RUN), train_source=text, valid_source=text)
    files.write_config(begun, shutil.copytree(RUN, run))
    start = [*out, "--start-from", run]
    return [
        ([*out, "--preset", "tinny"], "no preset 'tinny'"),
        ([*out, "--preset", "tiny", "--config", "x"], "leave out one of the two"),
        ([*out, "--config", "/none.yaml"], "/none.yaml cannot be read"),
        ([*out, "--train-source", text], "--valid-source is missing"),
        ([*out, "--valid-source", text], "--train-source is missing"),
        ([*out, *texts[:3], "/none.tsv"], "/none.tsv cannot be read"),
        ([*out, *texts, "--valid-target", "/none"], "/none cannot be read"),
        ([*out, *texts, "--preset", "tiny", "--bleu-tokenize", "x"], "no tokenizer 'x'"),
        ([*out, *texts, "--strategy", "all"], "no strategy 'all'"),
        ([*out, *texts, "--num-heads", "3"], "num_heads=3 does not divide"),
        ([*out, *texts, "--norm", "late"], "norm must be one of post, pre"),
        ([*out, *texts, "--peak", "-1"], "peak must be a number above 0"),
        ([*out, *texts, "--seed", "-1"], "seed must be at least 0"),
        ([*out, "--languages", "xx"], "'xx' is not a locale"),
        (["--output", run], "is not empty"),
        (["--output", "/none", "--resume"], "/none is no run directory"),
        (["--output", run, "--resume", "--seed", "2"], "begun with seed=1, received 2"),
        (["--output", run, "--resume", "--d-model", "6"], "begun with d_model=8, received 6"),
        (["--output", run, "--resume", "--freeze", "encoder"], "--freeze needs --start-from"),
        ([*start, *texts, "--d-ff", "3"], "has d_ff=16, received 3: what starts from it"),
        ([*start, *texts, "--model-type", "bpe", "--vocabulary-size", "300"], "vocabulary_size"),
        ([*start], "--train-source is missing: name the text to fine-tune on"),
        ([*start, *texts, "--freeze", "source-embeddings"], "would freeze the softmax"),
        ([*start, *texts, "--freeze", "softmax"], "freeze takes encoder, decoder, source-emb"),
        ([*out, *texts, "--start-from", "/none"], "/none is no run directory"),
    ]


def test_mistakes_are_said_without_tensorflow(tmp_path, text):
    commands, sentences = zip(*mistakes(tmp_path, text), strict=True)
    before = sorted(tmp_path.rglob("*"))
    said = sentences_before_tensorflow([["train", *command] for command in commands])
    assert len(said) == len(sentences), said
    for line, sentence in zip(said, sentences, strict=True):
        assert line.startswith("keras-transformer: ") and sentence in line
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def test_what_may_change_when_a_run_goes_on(tmp_path, text):
    begun = dataclasses.replace(kt.PRESETS["tiny"], train_source=text, valid_source=text)
    files.write_config(begun, tmp_path)
    changes = dict(epochs=99, cooldown_steps=9, patience=3, bleu_tokenize="none", log_every=1.0)
    changes |= dict(log_file=str(tmp_path / "log"), strategy="mirrored", logical_devices=2)
    other = shutil.copy(text, tmp_path / "moved.tsv")
    changes |= dict(precision="auto", parallel_microbatches=2, train_source=str(other))
    check_training(dataclasses.replace(begun, **changes), tmp_path, resume=True)


def test_text_is_known_by_its_fingerprint(tmp_path, text):
    config = kt.TrainConfig(train_source=text, valid_fraction=0.2)
    corpus = load_corpus(config)
    data = {"train": fingerprint(corpus.train), "valid": fingerprint(corpus.valid)}
    check_same_text(tmp_path, data)  # nothing is known of it
    (tmp_path / files.DATA).write_text(json.dumps(data))
    check_same_text(tmp_path, data)
    with pytest.raises(ValueError, match="The train text is not what .* was begun with"):
        check_same_text(tmp_path, data | {"train": fingerprint(corpus.train[1:])})
    with pytest.raises(ValueError, match="The valid text is not what"):
        check_same_text(tmp_path, data | {"valid": data["train"]})


def test_a_fine_tuned_run_may_have_another_dropout(tmp_path, text):
    begun = files.read_config(RUN)
    model = dataclasses.replace(begun.model, dropout=0.3)
    config = dataclasses.replace(
        begun, model=model, start_from=RUN, train_source=text, valid_source=text
    )
    check_training(config, tmp_path / "new")
