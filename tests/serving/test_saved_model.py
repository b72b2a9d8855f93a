"""The export: versions appear whole, are never changed, and can be read back."""

import math
import os
import resource
import shutil

import pytest
import tensorflow as tf

from keras_transformer.data.pairs import Pair
from keras_transformer.serving import saved_model, trial
from keras_transformer.serving.saved_model import CORE_OPS, export
from keras_transformer.utils import open_locked
from tests.support import stand_in_translator as stand_ins
from tests.support.command_line import python
from tests.support.toy_translator import random_translator

TEXTS = ["a cat", "the bird runs near", "", "東京 straße", "zebra"]
HIGHEST = 2**63 - 1


def answers_of(translator, texts):
    """What the translator in memory answers."""
    answers = translator.serve(tf.constant(texts, tf.string))
    return [text.decode() for text in answers["text"].numpy()], answers["log_prob"].numpy()


def entries(directory):
    return sorted(os.listdir(directory)) if os.path.exists(directory) else []


# Publishing.


def test_versions_count_up_and_are_left_alone(translator, tmp_path):
    base = tmp_path / "models" / "dates"
    assert export(translator, base) == str(base / "1")
    before = {path: path.stat() for path in (base / "1").rglob("*")}
    assert export(translator, str(base)) == str(base / "2")
    assert entries(base) == ["1", "2"]
    assert {path: path.stat() for path in (base / "1").rglob("*")} == before


def test_next_version_follows_what_the_server_takes_for_versions(translator, tmp_path):
    for name in ("1", "00007", "x", ".tmp-9-abc", "12.5", "1_000", "-40", "٤٢", str(HIGHEST + 1)):
        (tmp_path / name).mkdir()
    (tmp_path / "8").touch()
    assert export(translator, tmp_path) == str(tmp_path / "9")
    pairs = iter([Pair("ab", "ba", "a group"), ("b", "b")])
    assert export(translator, tmp_path, 3, pairs=pairs) == str(tmp_path / "3")


def test_what_a_killed_export_left_is_removed_but_no_export_under_way(translator, tmp_path):
    (tmp_path / "1.tmp").mkdir()
    (tmp_path / "1.tmp" / "saved_model.pb").write_bytes(b"half")
    other = open_locked(tmp_path)
    with pytest.raises(ValueError, match="Another export into .* is under way"):
        export(translator, tmp_path)
    assert entries(tmp_path / "1.tmp") == ["saved_model.pb"]
    os.close(other)
    assert export(translator, tmp_path) == str(tmp_path / "1")
    assert entries(tmp_path) == ["1"]


@pytest.mark.parametrize("limit", [1000, 30_000])
def test_a_full_disk_is_one_sentence(translator, tmp_path, limit):
    """The limit of a file's size is an error as that of a full disk, in Python and TensorFlow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(ValueError, match="File too large"):
            export(translator, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("version", [0, "3", HIGHEST + 1])
def test_version_has_to_be_a_positive_int64(translator, tmp_path, version):
    with pytest.raises(ValueError, match="expected an integer from 1"):
        export(translator, tmp_path / "base", version)
    assert entries(tmp_path / "base") == []
    (tmp_path / str(HIGHEST)).mkdir()
    with pytest.raises(ValueError, match="expected an integer from 1"):
        export(translator, tmp_path)


@pytest.mark.parametrize("name", ["3", "00003"])
def test_taken_version_is_refused(translator, tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="Version 3 is already in .* to get 4"):
        export(translator, tmp_path, version=3)
    assert entries(tmp_path) == [name] and entries(tmp_path / name) == []


@pytest.mark.parametrize("below", ["", "below"])
def test_base_has_to_be_a_directory(translator, tmp_path, below):
    (tmp_path / "file").write_text("content")
    with pytest.raises(ValueError, match="is not a directory"):
        export(translator, tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "content"


def test_something_else_than_a_translator_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Expected a Translator, received Module"):
        export(tf.Module(), tmp_path / "base")
    assert entries(tmp_path) == []


def test_weights_that_are_not_finite_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ValueError, match="The model has weights that are not finite, such as "):
        export(random_translator(deviation=math.nan), tmp_path / "base")
    assert entries(tmp_path) == []


def test_no_version_is_to_be_seen_before_it_is_whole(translator, tmp_path, monkeypatch):
    """And every file is flushed before the rename."""
    seen = []

    def spy(module, name):
        original = getattr(module, name)

        def spied(*args, **kwargs):
            result = original(*args, **kwargs)
            seen.append((name, entries(tmp_path)))
            return result

        monkeypatch.setattr(module, name, spied)

    spy(tf.saved_model, "save")
    spy(saved_model, "write_card")
    spy(saved_model, "write_warm_up")
    spy(saved_model, "check")
    spy(os, "replace")
    flushed, fsync, replace = [], os.fsync, os.replace

    def recording_fsync(descriptor):
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def checking_replace(source, target):
        tree = [os.path.join(where, x) for where, _, files in os.walk(source) for x in files]
        tree += [where for where, _, _ in os.walk(source)]
        assert os.path.join(source, "variables", "variables.index") in tree
        assert set(tree) <= set(flushed)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", checking_replace)
    export(translator, tmp_path)
    assert [name for name, _ in seen] == ["save", "write_warm_up", "write_card", "check", "replace"]
    for name, listing in seen[:-1]:
        assert listing == ["1.tmp"], name
    assert seen[-1] == ("replace", ["1"]) and flushed[-1] == str(tmp_path)


def test_other_users_may_read_the_version(version_dir):
    umask = os.umask(0)
    os.umask(umask)
    assert os.stat(version_dir).st_mode & 0o777 == 0o777 & ~umask


def test_version_that_appears_meanwhile_is_left_alone(translator, tmp_path, monkeypatch):
    def check(*_):
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "saved_model.pb").write_text("the other's")
        return []

    monkeypatch.setattr(saved_model, "check", check)
    with pytest.raises(ValueError, match="1 cannot be created: Directory not empty"):
        export(translator, tmp_path, version=1)
    assert entries(tmp_path) == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "the other's"


def test_pairs_have_to_be_pairs(translator, tmp_path):
    with pytest.raises(ValueError, match="must be pairs .* received element 0: 'ab'"):
        export(translator, tmp_path, pairs=["ab", "cd"])


@pytest.mark.parametrize(
    "twin, error, message",
    [
        (stand_ins.CompiledByXla, ValueError, "compiled by XLA"),
        (stand_ins.RaisesOnContent, tf.errors.InvalidArgumentError, "x > y"),
        (stand_ins.DropsRows, ValueError, "answers 3 rows with 1 of text"),
        (stand_ins.Random, ValueError, "must depend on its row and the weights only"),
        (stand_ins.NotANumber, ValueError, "log_prob nan, which JSON cannot hold"),
    ],
)
def test_unfit_translator_leaves_nothing_behind(tmp_path, twin, error, message):
    with pytest.raises(error, match=message):
        export(twin(), tmp_path)
    assert entries(tmp_path) == []


def test_model_is_tried_as_a_server_loads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "check_structure", lambda *_: [])
    with pytest.raises(ValueError, match="Could not find variable"):
        export(stand_ins.HoldsKerasLayer(), tmp_path)
    assert entries(tmp_path) == []


# Reading back.


def load_saved_model(path):
    """The stand-ins are made of other ops than exports of ours."""
    return saved_model.load_saved_model(path, CORE_OPS)


def test_load_saved_model_answers_as_the_translator(translator, version_dir):
    texts, log_probs = load_saved_model(version_dir)(TEXTS)
    expected_texts, expected_log_probs = answers_of(translator, TEXTS)
    assert texts == expected_texts and len(set(texts)) > 3
    assert log_probs == pytest.approx(list(expected_log_probs), abs=1e-4)
    assert load_saved_model(str(version_dir))([]) == ([], [])


def test_load_saved_model_takes_the_highest_version_of_a_base(version_dir, tmp_path):
    (tmp_path / "9").mkdir()  # 9 < 10, though not as text
    shutil.copytree(version_dir, tmp_path / "10")
    shutil.copytree(version_dir, tmp_path / ".tmp-11-abc")
    assert load_saved_model(tmp_path)(["a cat"]) == load_saved_model(version_dir)(["a cat"])


def test_load_saved_model_takes_any_text(version_dir):
    rows = ["", "\x00", "\ud800", b"\xff", "a cat runs " * 1000]
    texts, log_probs = load_saved_model(version_dir)(rows)
    assert len(texts) == len(rows) and all(map(math.isfinite, log_probs))
    with pytest.raises(ValueError, match="Expected a list of sentences"):
        load_saved_model(version_dir)("a cat")


def test_load_saved_model_needs_no_imports_of_its_caller(version_dir):
    program = (
        "import sys; from keras_transformer.serving.saved_model import CORE_OPS, load_saved_model; "
        "assert 'tensorflow_text' not in sys.modules; "
        "print(load_saved_model(sys.argv[1], CORE_OPS)(['a cat'])[1])"
    )
    answer = load_saved_model(version_dir)(["a cat"])[1]
    assert python("-c", program, version_dir) == f"{answer}\n"


@pytest.mark.parametrize("damage", ["absent", "file", "junk", "index", "shard"])
def test_load_saved_model_says_what_is_wrong(version_dir, tmp_path, damage):
    path = tmp_path / "model"
    if damage == "file":
        path.write_text("text")
    elif damage != "absent":
        shutil.copytree(version_dir, path)
    if damage == "junk":
        (path / "saved_model.pb").write_bytes(b"junk\xff")
    if damage == "index":
        (path / "variables" / "variables.index").unlink()
    if damage == "shard":
        (path / "variables" / "variables.data-00000-of-00001").unlink()
    with pytest.raises(ValueError, match="SavedModel|is corrupted|is missing") as error:
        load_saved_model(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_load_saved_model_refuses_another_signature(tmp_path):
    twin = stand_ins.OtherNames()
    signatures = {"serving_default": twin.serve.get_concrete_function()}
    tf.saved_model.save(twin, str(tmp_path), signatures=signatures)
    with pytest.raises(ValueError, match="The outputs of 'serving_default' are"):
        load_saved_model(tmp_path)
