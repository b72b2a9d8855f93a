"""What can be wrong with a training is said before TensorFlow and the corpus are loaded."""

import dataclasses
import shutil

import pytest

import keras_transformer as kt
from keras_transformer.data.dates import LANGUAGES
from keras_transformer.data.pairs import fingerprint
from keras_transformer.data.text_files import load_corpus
from keras_transformer.runs.run import CONFIG, Run, from_yaml, to_yaml
from keras_transformer.runs.training_data import check_training, parse_corpora
from tests.support.command_line import sentences_before_tensorflow, succeeds
from tests.support.made_up_text import write_text
from tests.support.paths import FIXTURES

RUN = str(FIXTURES / "format-1" / "run")  # of a vocabulary of characters, all embeddings shared


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text, a run on it, and corpora that do and do not go together."""
    folder = tmp_path_factory.mktemp("prepared")
    text = write_text(folder, 103)
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"one {i}\teins {i}\n" for i in range(20)))
    texts = dict(train_source=str(pairs), valid_source=str(pairs))
    begun = dataclasses.replace(Run(RUN).read_config(), **texts)
    Run(shutil.copytree(RUN, folder / "run")).write_config(begun)

    def prepare(name, **options):
        kt.prepare(kt.PrepareConfig(*text, **options), folder / name, processes=1)

    prepare("good", vocabulary_size=300, valid_fraction=0.1)
    prepare("more", vocabularies=str(folder / "good"))
    prepare("other", vocabulary_size=300, seed=2, vocabulary_sample=40)
    prepare("apart", vocabulary_size=300, valid_fraction=0.1, joint_vocabulary=False)
    (folder / "vec").write_text("fox 0.1 0.2\n")
    (folder / "vocab.txt").write_text("[UNK]\nfox\nfox\n")
    return folder


# Wrong command lines, and what the sentence must say. {} is the folder.
NEW = "train --output {}/new "
TEXTS = NEW + "--train-source {}/pairs.tsv --valid-source {}/pairs.tsv "
TINY = TEXTS + "--preset tiny "
APART = TINY + "--share-embeddings target --d-model 8 "
OWN = APART + "--source-vocabulary {}/vocab.txt"
AGAIN = "train --output {}/run --resume "
TUNED = TEXTS + "--start-from {}/run "
CORPUS = "train --preset tiny --output {}/new --corpus {}/"
PREPARE = "prepare --output {}/new --train-source "
BOTH = PREPARE + "{}/part-*.source --train-target {}/part-*.target "
MISTAKES = [
    (NEW + "--preset tiny", "Training data is missing: pass --train-source"),
    (NEW + "--valid-source {}/pairs.tsv", "Training data is missing"),
    (TEXTS + "--train-target {}/pairs.tsv", "has both source and target: omit --train-target"),
    (NEW + "--train-source {}/pairs.tsv", "--valid-source is missing"),
    (NEW + "--train-source {}/pairs.tsv --valid-source /none.tsv", "No file matches /none.tsv"),
    (NEW + "--preset tiny --config x", "leave out one of the two"),
    (TEXTS + "--valid-fraction 0.1", "leave out one of the two"),
    (TEXTS + "--languages de", "--languages applies to the built-in dates"),
    (TINY + "--tokens-per-batch 8", "tokens_per_batch must be at least max_length"),
    (TINY + "--validate-by bleu --bleu-tokenize x", "no tokenizer 'x'"),
    (TEXTS + "--positions relative --max-distance 0", "max_distance must be a positive"),
    (TEXTS + "--positions bucketed --max-distance 16", "must be greater than 16"),
    (TINY + "--logical-devices 2", "--logical-devices needs --strategy mirrored"),
    (TINY + "--logical-devices 2 --strategy mirrored --jit-compile", ", without --jit-compile"),
    # A run to resume, or to start from.
    ("train --output {}/run", "is not empty"),
    ("train --output gs://bucket/run", "gs://bucket/run is a URL: write to a directory"),
    ("train --output /none --resume", "/none is not a run directory"),
    (AGAIN + "--seed 2", "seed must be 1 to resume"),
    (AGAIN + "--freeze encoder", "--freeze needs --start-from"),
    (TUNED + "--d-ff 3", "d_ff must be 16 with --start-from"),
    (TUNED + "--model-type bpe --vocabulary-size 300", "vocabulary_size must be None with"),
    (NEW + "--start-from {}/run", "--train-source is missing: give the text to fine-tune on"),
    (TUNED + "--freeze source-embeddings", "would also freeze the softmax"),
    # Vocabularies and word vectors.
    (TINY + "--source-vocabulary-size 60", "needs separate vocabularies"),
    (TINY + "--source-vocabulary {}/vocab.txt", "must be the same file for a joint vocabulary"),
    (OWN, "'fox' is duplicated"),
    (APART + "--target-vocabulary-size 60", "vocabulary_size must be greater than 260"),
    (OWN + " --source-vocabulary-size 9", "has a size: leave out --source-vocabulary-size"),
    (APART + "--source-vectors {}/vec", "must have lines of a word and 8 numbers, the width"),
    (TINY + "--source-vectors {}/vec --target-vectors {}/vec", "cannot be used with --share-embed"),
    (TUNED + "--source-vectors {}/vec", "--source-vectors and --start-from"),
    # Prepared corpora.
    (CORPUS + "good --train-source x", "--corpus excludes --train-source"),
    (CORPUS + "good --no-nfkc", "nfkc must be True for the corpus"),
    (CORPUS + "good {}/other", "prepare it with --vocabularies"),
    (CORPUS + "more", "was prepared without validation data"),
    (CORPUS + "apart", "--share-embeddings all needs a joint vocabulary"),
    (PREPARE + "{}/part-*.source", "--train-target is missing"),
    (BOTH + "--samples 3", "samples needs --subword-sampling"),
    (BOTH + "--valid-fraction 0.1 --valid-source x.tsv", "leave out one of the two"),
    (BOTH + "--vocabularies {}", "has no vocabularies of source and target"),
]


def test_mistakes_are_said_without_tensorflow(folder):
    commands, sentences = zip(*MISTAKES, strict=True)
    before = sorted(folder.rglob("*"))
    words = [command.replace("{}", str(folder)).split() for command in commands]
    said = sentences_before_tensorflow(words)
    assert len(said) == len(sentences), said
    pairs = zip(said, sentences, strict=True)
    wrong = [x for x in pairs if not x[0].startswith("keras-transformer: ") or x[1] not in x[0]]
    assert wrong == []
    assert sorted(folder.rglob("*")) == before, "something was written"


def test_dates_are_for_who_asks_for_them(tmp_path, monkeypatch):
    """By their preset, also from a file; by an option; and by a run that was trained on them."""
    dates, tiny = kt.PRESETS["dates"], kt.PRESETS["tiny"]
    (tmp_path / "dates.yaml").write_text(to_yaml(dates))
    asked = dict(dates=True), dict(languages=("de",))
    for config in (
        *(dates, from_yaml(tmp_path / "dates.yaml")),
        *(dataclasses.replace(tiny, **options) for options in asked),
    ):
        check_training(config, tmp_path / "new")
    monkeypatch.setattr("keras_transformer.data.dates.dates", lambda languages: languages)
    found = [load_corpus(dataclasses.replace(tiny, **options)) for options in asked]
    assert [load_corpus(dates), *found] == [LANGUAGES, LANGUAGES, ("de",)]
    lines = to_yaml(dates).splitlines(keepends=True)  # an earlier version had no `dates`
    (tmp_path / CONFIG).write_text("".join(x for x in lines if not x.startswith("dates:")))
    for config in (Run(tmp_path).read_config(), dates):
        check_training(config, tmp_path, resume=True)


def test_an_option_that_has_left_is_refused(tmp_path):
    """Subword sampling: the run translates, but is not trained further."""
    (tmp_path / "config.yaml").write_text("format: 1\nsubword_sampling: 0.1\n")
    config = Run(tmp_path).read_config()
    assert config.subword_sampling == 0.1 and "\nsubword_sampling: 0.1" in to_yaml(config)
    with pytest.raises(ValueError, match="train no longer has the option subword_sampling"):
        check_training(config, tmp_path / "new")


def test_what_may_change_when_a_run_goes_on(tmp_path, folder):
    text = str(folder / "pairs.tsv")
    begun = dataclasses.replace(kt.PRESETS["dates"], train_source=text, valid_source=text)
    Run(tmp_path).write_config(begun)
    changes = dict(epochs=99, cooldown_steps=9, patience=3, bleu_tokenize="none", log_every=1.0)
    changes |= dict(strategy="mirrored", logical_devices=2, precision="auto", dates=False)
    other = shutil.copy(text, tmp_path / "moved.tsv")
    changes |= dict(parallel_microbatches=2, train_source=str(other))
    check_training(dataclasses.replace(begun, **changes), tmp_path, resume=True)
    # A run that is fine-tuned may have another dropout.
    begun = Run(RUN).read_config()
    changes = dict(model=dataclasses.replace(begun.model, dropout=0.3), start_from=RUN)
    changes |= dict(train_source=text, valid_source=text)
    check_training(dataclasses.replace(begun, **changes), tmp_path / "new")


def test_text_is_known_by_its_fingerprint(tmp_path):
    data = {part: fingerprint([(part, part)]) for part in ("train", "valid")}
    Run(tmp_path).check_same_text(data)  # nothing is known of it
    Run(tmp_path).write_data(data)
    Run(tmp_path).check_same_text(data)
    for part in data:
        with pytest.raises(ValueError, match=f"The {part} text must be that of"):
            Run(tmp_path).check_same_text(data | {part: fingerprint([("other", "text")])})


def test_weights_of_corpora(tmp_path):
    (tmp_path / "a:2").mkdir()
    corpora = ["a", "b:3", "c:0.25", "d:e", f"{tmp_path}/a:2", f"{tmp_path}/a:2:5"]
    expected = [("a", 1), ("b", 3), ("c", 0.25), ("d:e", 1)]
    assert parse_corpora(corpora) == [*expected, (f"{tmp_path}/a:2", 1), (f"{tmp_path}/a:2", 5)]
    for weight in ("0", "-1", "inf", "nan"):
        with pytest.raises(ValueError, match="must be a number above 0"):
            parse_corpora([f"a:{weight}"])


def test_a_corpus_says_what_its_vocabulary_is(folder, seen):
    """So that it need not be said again; and corpora may be named one by one, or all at once."""
    train = ["train", "--preset", "tiny", "--output", "x"]
    good, more = f"{folder}/good:3", f"{folder}/more"
    for corpora in (["--corpus", good, more], ["--corpus", good, "--seed", "5", "--corpus", more]):
        succeeds(*train, *corpora)
    (one, other), tiny = seen, kt.PRESETS["tiny"]
    assert one.corpus == other.corpus == (good, more) and other.seed == 5
    assert one.vocabulary_size == 300 != tiny.vocabulary_size and one.model == tiny.model
