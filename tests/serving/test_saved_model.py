"""The export: versions appear whole, are never changed, and can be read back."""

import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data.pairs import Pair
from keras_transformer.serving import saved_model, trial
from keras_transformer.serving.saved_model import CORE_OPS, export
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.utils import open_locked
from tests.support import child_process
from tests.support import stand_in_translator as stand_ins
from tests.support.command_line import python
from tests.support.paths import EXPORT, FIXTURES, ROOT
from tests.support.sealing import reseal
from tests.support.toy_translator import SOURCES

HIGHEST = 2**63 - 1
PLAIN = FIXTURES / "format-1" / "export" / "1"
ANSWERS = json.loads((FIXTURES / "format-1" / "translations.json").read_text())


def entries(directory):
    return sorted(os.listdir(directory))


@pytest.fixture
def untried(monkeypatch):
    """Exports are not tried: what is tested is where they appear."""
    monkeypatch.setattr(saved_model, "check", lambda *_: [])


def test_versions_count_up_and_are_left_alone(stand_in, untried, tmp_path):
    base = tmp_path / "models" / "dates"
    assert export(stand_in, base) == str(base / "1")
    before = {path: path.stat() for path in (base / "1").rglob("*")}
    (base / "00007").mkdir()
    (base / "8").touch()
    pairs = iter([Pair("ab", "ba", "a group"), (b"b", "b\ud800")])
    assert export(stand_in, str(base), pairs=pairs) == str(base / "9")
    assert export(stand_in, base, 3) == str(base / "3")
    assert entries(base) == ["00007", "1", "3", "8", "9"]
    assert {path: path.stat() for path in (base / "1").rglob("*")} == before
    os.umask(umask := os.umask(0))
    assert os.stat(base / "1").st_mode & 0o777 == 0o777 & ~umask  # others may read it


def test_what_a_killed_export_left_is_removed_but_no_export_under_way(stand_in, untried, tmp_path):
    (tmp_path / "tmp.1").mkdir()
    (tmp_path / "tmp.1" / "saved_model.pb").write_bytes(b"half")
    (tmp_path / "1.tmp").mkdir()  # of the user
    other = open_locked(tmp_path)
    with pytest.raises(ValueError, match="Another export into .* is under way"):
        export(stand_in, tmp_path)
    assert entries(tmp_path / "tmp.1") == ["saved_model.pb"]
    os.close(other)
    assert export(stand_in, tmp_path) == str(tmp_path / "1")
    assert entries(tmp_path) == ["1", "1.tmp"]


@pytest.mark.parametrize("limit", [1000, 30_000])
def test_a_full_disk_is_one_sentence(stand_in, tmp_path, limit):
    """Where Python writes, and where TensorFlow does."""
    with pytest.raises(ValueError, match="File too large"), child_process.largest_file(limit):
        export(stand_in, tmp_path)
    assert entries(tmp_path) == []


def test_versions_that_are_refused(stand_in, tmp_path):
    (tmp_path / "00003").mkdir()
    (tmp_path / "full" / str(HIGHEST)).mkdir(parents=True)
    (tmp_path / "file").write_text("content")
    (tmp_path / "version").mkdir()
    (tmp_path / "version" / "saved_model.pb").touch()
    with pytest.raises(ValueError, match="^gs://bucket/models is a URL: export to a directory"):
        export(stand_in, "gs://bucket/models")
    for base, options, message in (
        *((".", dict(version=x), f"is {x!r}; expected an integer") for x in (0, True, "3", 2**63)),
        (".", dict(version=3), "Version 3 is already in .* to get 4"),
        (".", dict(pairs=["ab", "cd"]), "must be pairs .* received element 0: 'ab'"),
        (".", dict(config=kt.ExportConfig(precision="int8")), "is for a Translator only: leave"),
        (".", dict(config=kt.SearchConfig()), "must be an ExportConfig, received SearchConfig"),
        ("version", {}, "version is a version: give the directory above it"),
        ("full", {}, "expected an integer from 1"),
        ("file", {}, "is not a directory"),
        ("file/below", {}, "is not a directory"),
    ):
        with pytest.raises(ValueError, match=message):
            export(stand_in, tmp_path / base, **options)
    assert entries(tmp_path) == ["00003", "file", "full", "version"]
    assert entries(tmp_path / "full") == [str(HIGHEST)]


def test_no_version_is_to_be_seen_before_it_is_tried_and_flushed(stand_in, tmp_path, monkeypatch):
    tried, flushed, check, fsync, replace = [], [], saved_model.check, os.fsync, os.replace

    def recording_check(temporary, *arguments):
        tried.append(entries(tmp_path))
        return check(temporary, *arguments)

    def recording_fsync(descriptor):
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def checking_replace(source, target):
        assert tried == [entries(tmp_path)] == [["tmp.1"]]
        tree = {str(source), *map(str, pathlib.Path(source).rglob("*"))}
        assert os.path.join(source, "variables", "variables.index") in tree <= set(flushed)
        replace(source, target)

    monkeypatch.setattr(saved_model, "check", recording_check)
    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", checking_replace)
    export(stand_in, tmp_path)
    assert tried and entries(tmp_path) == ["1"] and flushed[-1] == str(tmp_path)


def test_version_that_appears_meanwhile_is_left_alone(stand_in, tmp_path, monkeypatch):
    def check(*_):
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "saved_model.pb").write_text("the other's")
        return []

    monkeypatch.setattr(saved_model, "check", check)
    with pytest.raises(ValueError, match="1 cannot be created: Directory not empty"):
        export(stand_in, tmp_path, version=1)
    assert entries(tmp_path) == ["1"]
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "the other's"


def test_unfit_translator_leaves_nothing_behind(tmp_path):
    for twin, error, message in (
        (stand_ins.CompiledByXla, ValueError, "compiled by XLA"),
        (stand_ins.RaisesOnContent, tf.errors.InvalidArgumentError, "x > y"),
        (stand_ins.Random, ValueError, "must depend on its row and the weights only"),
    ):
        reports = []
        with pytest.raises(error, match=message):
            export(twin(), tmp_path, report=reports.append)
        assert entries(tmp_path) == [] and len(reports) == (error is ValueError)


def test_model_is_tried_as_a_server_loads_it(tmp_path, monkeypatch):
    """Python finds the variables of a Keras layer that is an attribute, a server does not."""
    monkeypatch.setattr(trial, "check_structure", lambda *_: [])
    with pytest.raises(ValueError, match="Could not find variable"):
        export(stand_ins.HoldsKerasLayer(), tmp_path)
    assert entries(tmp_path) == []


EXPORTS = """
import sys
from keras_transformer.serving.saved_model import export
from tests.support.stand_in_translator import StandIn
translator = StandIn()
print("ready", flush=True)
while True:
    export(translator, sys.argv[1])
    print("published", flush=True)
"""


@pytest.mark.slow
def test_killed_exports_leave_no_broken_version(tmp_path):
    """A server sees whole versions, or none."""
    base, generator = tmp_path, random.Random(5)
    seconds, cut_off = None, 0  # that an export takes; kills in the middle
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    for _ in range(3):
        # Killed with the server process of the trial.
        with child_process.running([sys.executable, "-c", EXPORTS, base], **pipes) as process:
            assert process.stdout.readline() == "ready\n"
            if seconds is None:
                started = time.monotonic()
                assert process.stdout.readline() == "published\n"
                seconds = time.monotonic() - started
            time.sleep(generator.uniform(0.1, 0.9) * seconds)
        versions = [name for name in entries(base) if re.fullmatch("[0-9]+", name)]
        left = [name for name in entries(base) if name.startswith("tmp.")]
        assert sorted(versions + left) == entries(base)
        assert len(left) <= 1, "the next export removes what is left"
        cut_off += len(left)
    assert cut_off
    for version in versions:
        files = {path.name for path in (base / version).rglob("*")}
        assert files == {path.name for path in (base / "1").rglob("*")}
        assert kt.check_structure(base / version, CORE_OPS) == []  # stand-ins hold others
        with ServerProcess(base / version) as server:
            assert "error" not in server.predict(["a cat"])


def test_export_holds_no_gradients(toy_version):
    for version_dir, there in ((toy_version, False), (PLAIN, True)):  # written with them
        with open(f"{version_dir}/saved_model.pb", "rb") as file:
            assert (b"internal_grad_fn" in file.read()) == there


def test_load_saved_model_answers_as_a_server():
    translate = kt.load_saved_model(PLAIN.parent)
    tf.random.set_seed(5)  # empties the cache of kernels, but not the model
    with ServerProcess(PLAIN) as server:
        expected = server.predict(SOURCES)
    texts, log_probs = translate(SOURCES)
    assert texts == expected["text"] == [ANSWERS[source] for source in SOURCES]
    assert log_probs == pytest.approx(expected["log_prob"], abs=1e-4)
    assert translate([]) == ([], [])
    assert len(translate(["", "\x00", "\ud800", b"\xff"])[0]) == 4
    with pytest.raises(ValueError, match="Expected a list of sentences"):
        translate("a cat")


def test_load_saved_model_needs_no_imports_of_its_caller():
    program = "import sys; from keras_transformer.serving.saved_model import load_saved_model\n"
    program += "assert 'tensorflow_text' not in sys.modules\n"
    program += "print(*load_saved_model(sys.argv[1])(['abc'])[0])"
    assert python("-c", program, PLAIN) == f"{ANSWERS['abc']}\n"


def test_load_saved_model_says_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="absent does not contain a SavedModel"):
        kt.load_saved_model(tmp_path / "absent")
    path = shutil.copytree(PLAIN, tmp_path / "model")
    data = reseal(path) / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[::-1])
    with pytest.raises(ValueError, match="variables.data-00000-of-00001 is corrupted"):
        kt.load_saved_model(path)
    reseal(path)
    with pytest.raises(ValueError, match="model cannot be loaded as a SavedModel; ") as error:
        kt.load_saved_model(path)
    assert "\n" not in str(error.value)


def test_translate_without_this_package_takes_any_bytes(toy_version, translator):
    some = [b"abc", b"\xff\xfe\t\x00", b"", b"hg\r", "\u2028x".encode()]
    lines = [*some * 60, b"no end"]  # more than one request
    command = [sys.executable, EXPORT / "translate.py", toy_version]
    done = child_process.run(command, input=b"\n".join(lines), capture_output=True, check=True)
    rows = done.stdout.removesuffix(b"\n").split(b"\n")
    sources = [line.removesuffix(b"\r") for line in lines]
    texts = [b" ".join(text.encode().splitlines()) for text in translator.translate(sources)]
    expected = [b"%b\t%b" % columns for columns in zip(sources, texts, strict=True)]
    found, log_probs = zip(*(row.rsplit(b"\t", 1) for row in rows), strict=True)
    assert list(found) == expected and max(map(float, log_probs)) <= 0
    assert rows[2] == b"\t\t0.0000"


@pytest.mark.slow
def test_saved_model_cli_as_the_readme_has_it():
    readme = (EXPORT / "README.md").read_text()
    (block,) = re.findall(r"( +python -c \"import tensorflow_text;.*?)\n\n", readme, re.DOTALL)
    _, *arguments = shlex.split(block.replace("\\\n", " "))
    arguments[arguments.index("--dir") + 1] = str(PLAIN)
    assert "output key text:\n[b'" in python(*arguments)
