"""What prepared corpora can be wrong with is said before TensorFlow is loaded."""

import json
import shutil

import pytest

import keras_transformer as kt
from keras_transformer.runs.training_data import parse_corpora
from tests.support.command_line import run, sentences_before_tensorflow
from tests.support.made_up_text import write_text
from tests.support.paths import FIXTURES

RUN = FIXTURES / "format-1" / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Corpora that do and do not go together."""
    folder = tmp_path_factory.mktemp("prepared")
    text = write_text(folder, 103)

    def prepare(name, **options):
        kt.prepare(kt.PrepareConfig(*text, **options), folder / name, processes=1)

    prepare("good", vocabulary_size=300, valid_fraction=0.1)
    prepare("more", vocabularies=str(folder / "good"))
    prepare("other", vocabulary_size=300, seed=2, vocabulary_sample=40)
    prepare("apart", vocabulary_size=300, valid_fraction=0.1, joint_vocabulary=False)
    newer = shutil.copytree(folder / "good", folder / "newer")
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps(manifest | {"format": 7}))
    return folder


def mistakes(folder):
    """Wrong command lines, and what the sentence must say."""
    good, text = f"{folder}/good", f"{folder}/part-*.source"
    train = ["train", "--preset", "tiny", "--output", f"{folder}/new"]
    prepare = ["prepare", "--output", f"{folder}/new", "--train-source"]
    both = [text, "--train-target", f"{folder}/part-*.target"]
    table = [f"{folder}/table.TSV.gz"]
    (folder / "table.TSV.gz").write_bytes(b"")
    return [
        ([*train, "--corpus", f"{folder}/none"], "none is not a prepared corpus"),
        ([*train, "--corpus", f"{folder}/newer"], "was prepared by another version, in format 7"),
        ([*train, "--corpus", good, "--train-source", text], "--corpus excludes --train-source"),
        (
            [*train, "--corpus", good, "--valid-fraction", "0.1"],
            "--corpus excludes --valid-fraction",
        ),
        ([*train, "--corpus", good, "--valid-target", text], "--valid-source is missing"),
        ([*train, "--corpus", good, "--nfkc", "--no-nfkc"], "nfkc must be True for the corpus"),
        ([*train, "--corpus", f"{good}:0"], f"must be a number above 0, received {good}:0"),
        ([*train, "--corpus", good, "--corpus", f"{good}:-1"], "must be a number above 0"),
        ([*train, "--corpus", good, f"{folder}/other"], f"prepare it with --vocabularies {good}"),
        ([*train, "--corpus", f"{folder}/more"], "was prepared without validation data"),
        (
            [*train, "--corpus", f"{folder}/apart"],
            "--share-embeddings all needs a joint vocabulary",
        ),
        (
            [*train, "--corpus", good, "--start-from", RUN],
            "vocabulary_size must be None with --start-from",
        ),
        (["prepare", *prepare[1:], *both, "--model-type", "x"], "model_type must be one of"),
        ([*prepare, f"{folder}/part-*.none"], "part-*.none: check the path"),
        ([*prepare, text], "--train-target is missing"),
        ([*prepare, *table, "--train-target", table[0]], "omit --train-target"),
        ([*prepare, *table, "--valid-source", *table, "--valid-target", text], "--valid-target."),
        ([*prepare, *both, "--processes", "0"], "processes must be at least 1"),
        ([*prepare, *both, "--vocabularies", folder], "has no vocabularies of source and target"),
        ([*prepare, *both, "--output", good], "good is not empty: choose another --output"),
    ]


def test_mistakes_are_said_without_tensorflow(folder):
    commands, sentences = zip(*mistakes(folder), strict=True)
    before = sorted(folder.rglob("*"))
    said = sentences_before_tensorflow(commands)
    assert len(said) == len(sentences), said
    wrong = [
        (sentence, line)
        for line, sentence in zip(said, sentences, strict=True)
        if not (line.startswith("keras-transformer: ") and sentence in line)
    ]
    assert wrong == []
    assert sorted(folder.rglob("*")) == before, "something was written"


def test_weights(tmp_path):
    (tmp_path / "a:2").mkdir()
    corpora = ["a", "b:3", "c:0.25", "d:e", f"{tmp_path}/a:2", f"{tmp_path}/a:2:5"]
    expected = [("a", 1), ("b", 3), ("c", 0.25), ("d:e", 1)]
    assert parse_corpora(corpora) == [
        *expected,
        (f"{tmp_path}/a:2", 1),
        (f"{tmp_path}/a:2", 5),
    ]
    for weight in ("0", "-1", "inf", "nan"):
        with pytest.raises(ValueError, match="must be a number above 0"):
            parse_corpora([f"a:{weight}"])


def test_a_corpus_says_what_its_vocabulary_is(folder, monkeypatch):
    """So that it need not be said again; and corpora may be named one by one, or all at once."""
    seen = []
    checked = "keras_transformer.runs.training_data.check_training"
    monkeypatch.setattr(checked, lambda config, *_: seen.append(config))
    monkeypatch.setattr("keras_transformer.train.train_run", lambda *_: None)
    train = ["train", "--preset", "tiny", "--output", "x"]
    good, more = f"{folder}/good:3", f"{folder}/more"
    for corpora in (["--corpus", good, more], ["--corpus", good, "--seed", "5", "--corpus", more]):
        assert run(*train, *corpora).returncode == 0
    one, other = seen
    assert one.corpus == other.corpus == (good, more)
    assert one.vocabulary_size == 300 and kt.PRESETS["tiny"].vocabulary_size != 300
    assert one.model == kt.PRESETS["tiny"].model and other.seed == 5


def test_prepare_is_a_command(folder, tmp_path):
    text = [
        "--train-source",
        f"{folder}/part-*.source",
        "--train-target",
        f"{folder}/part-*.target",
    ]
    result = run(
        *["prepare", *text, "--valid-fraction", "0.1", "--vocabulary-size", "300"],
        *["--processes", "1", "--output", tmp_path / "corpus"],
    )
    assert result.returncode == 0 and not result.stdout, result.stderr
    assert f"{tmp_path}/corpus: 1 shard" in result.stderr.decode()
    for name in ("manifest.json", "00000.ids.npy"):
        made = (tmp_path / "corpus" / name).read_bytes()
        assert made == (folder / "good" / name).read_bytes()
