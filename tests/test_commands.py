"""The commands in the documentation are valid: the parser accepts them, and nothing is executed."""

import functools
import inspect
import itertools
import json
import os
import re
import shlex

import pytest

import keras_transformer as kt
from keras_transformer.cli.main import COMMANDS as FUNCTIONS
from tests.support.command_line import run
from tests.support.paths import ROOT

GUIDE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "export/README.md", *GUIDE]


def lines_of(page):
    """Lines of the blocks that name no language, those that go on with one above joined to it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```\w+\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"\n\n((?: {7,}.*\n)+)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for block in blocks:
        block = inspect.cleandoc(block).replace("\\\n", " ")
        yield from re.sub(r"\n +", " ", block).splitlines()


def spans_of(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def commands_of(page):
    """Command lines as lists of words, options in brackets as if they were given."""
    for line in (*lines_of(page), *spans_of(page)):
        line = re.sub(r"(^|\s)#.*", "", line).removeprefix("time ").rpartition("| ")[2]
        if re.match(r"keras-transformer [a-z]|python ", line):
            if len(line.split()) == 2 and line in spans_of(page):
                line += " --help"  # no more than the name of a command
            words = shlex.split(re.sub(r"\s<+ .*|\s> \S+|[\[\]]", " ", line))
            if "train" in words and "--output" not in words:
                words += ["--output", "where the text does not say"]
            yield words


COMMANDS = [(page, words) for page in PAGES for words in commands_of(page)]


def make_configurations(words):
    """What `train` reads before its options: files, and those of runs."""
    for option, file in itertools.pairwise(words):
        if option in ("--output", "--start-from") and words[1] == "train":
            file = f"{file}/config.yaml"
        if option in ("--config", "--output", "--start-from"):
            os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
            with open(file, "wb") as stream:
                stream.write(run("config").stdout)
        if option == "--corpus":
            folder = file.partition(":")[0]
            os.makedirs(folder, exist_ok=True)
            options = {"vocabulary_size": 9, "model_type": "bpe", "lowercase": False, "nfkc": True}
            manifest = {"format": 1, "options": options, "fingerprints": {"train": {"pairs": 0}}}
            manifest |= {"shards": [], "files": {"source.spm": {}, "target.spm": {}}}
            with open(f"{folder}/manifest.json", "w", encoding="utf-8") as stream:
                json.dump(manifest, stream)


def ids(value):
    return " ".join(value) if isinstance(value, list) else value


@pytest.mark.parametrize("page, words", [c for c in COMMANDS if c[1][0] != "python"], ids=ids)
def test_the_command_line_knows_every_word(page, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    make_configurations(words)
    called = []
    for name, command in FUNCTIONS.items():
        instead = functools.wraps(command)(lambda *_, **options: called.append(options))
        monkeypatch.setitem(FUNCTIONS, name, instead)
    result = run(*words[1:])
    assert result.returncode == 0, (result.stdout + result.stderr).decode()
    assert called or "--help" in words


PROGRAMS = [c for c in COMMANDS if c[1][0] == "python" and c[1][1] != "-c"]


@pytest.mark.parametrize("page, words", PROGRAMS, ids=ids)
def test_programs_are_there(page, words):
    """And know the options that they are given, by their names."""
    words = words[: words.index("--")] if "--" in words else words  # those of train follow
    path = ROOT / words[1]
    if words[1] == "-m":
        path = ROOT.joinpath(*words[2].split("."))
        path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert path.is_file(), words
    program = path.read_text(encoding="utf-8")
    known = set(re.findall(r'"(--[a-z-]+)"', program))  # argparse's; others have fields
    fields = re.findall(r"^    (\w+): ", program, flags=re.MULTILINE)
    known |= {f"--{name.replace('_', '-')}" for name in fields}
    assert {word for word in words if word.startswith("--")} <= known, words


def test_targets_tests_and_markers_are_there():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[1].split())
    markers = (ROOT / "setup.cfg").read_text().partition("markers =")[2]
    for line in (line for page in PAGES for line in (*lines_of(page), *spans_of(page))):
        assert set(re.findall(r"\bmake ([a-z][\w-]*)", line)) <= targets, line
        assert all(f"    {one}:" in markers for one in re.findall(r"pytest -m (\w+)", line))
        assert all((ROOT / path).exists() for path in re.findall(r"pytest (tests/\S+)", line))


def test_names_are_public():
    names = set()
    for page in PAGES:
        names |= set(re.findall(r"\bkt\.(\w+)", (ROOT / page).read_text(encoding="utf-8")))
    assert len(names) > 40 and names <= set(kt.__all__), names - set(kt.__all__)
