"""The code of every page of the guide runs, in the order of the page, and gives what it says."""

import contextlib
import os
import re
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
import yaml

from docs.pages import REPOSITORY_PAGES as REPOSITORY
from docs.pages import slug
from tests.support import examples
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
WITH_CODE = [name for name, text in PAGES.items() if "```python\n" in text]
SLOW = ("getting-started.md", "serving.md")
# Pages without code of their own: tables, and a list of pages.
WITHOUT_CODE = (
    "benchmarks.md",
    "bulk-translation.md",
    "index.md",
    "loading-trials.md",
    "translation-quality.md",
)


def blocks_of(page):
    """The blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def run_page(page, names):
    """Executes a page; errors name it and its line."""
    for block in blocks_of(page):
        above = PAGES[page].partition(block)[0].count("\n")
        exec(compile("\n" * above + block, DOCS / page, "exec"), names)
    return names


@pytest.fixture(scope="module")
def user_files(tmp_path_factory):
    """A folder with text, prepared like a user's, and the small run `runs/dates`."""
    folder = tmp_path_factory.mktemp("guide")
    with contextlib.chdir(folder):
        examples.write_files()
        examples.make_run()
    return folder


@pytest.fixture
def folder(user_files, tmp_path, monkeypatch):
    """A copy of it, in which the page runs."""
    shutil.copytree(user_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    yield tmp_path
    plt.close("all")


def printed_lines(page):
    """What the comments behind calls of print promise, "…" for anything."""
    return re.findall(r"^ *print\(.*\)  # (?!for example)(.+)$", "\n".join(blocks_of(page)), re.M)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.slow] * (p in SLOW)) for p in WITH_CODE]
)
def test_code_of_page(page, folder, capsys):
    names = run_page(page, {})
    printed = capsys.readouterr().out.splitlines()
    for promised in printed_lines(page):
        promised = promised.partition(": ")[0]
        pattern = re.escape(promised).replace("…", ".*")
        assert any(re.match(pattern, line) for line in printed), (promised, printed)
    if check := CHECKS.get(page):
        check(names)


def check_language_model(names):
    known = {name.encode() for name in names["names"]}
    sampled = names["tokenizer"].detokenize(names["tokens"]).numpy()
    assert len(sampled) == 4 and sum(name in known for name in sampled) >= 3
    assert names["loaded"].output_shape == (None, 2)


def check_tagger(names):
    ids = np.array([[5, 6, 7, 0], [7, 6, 5, 5]])
    loaded = names["keras"].saving.load_model("tagger.keras")
    np.testing.assert_allclose(loaded(ids), names["tagger"](ids), atol=1e-6)


def check_interruption(names):
    """The script is run again as it is, after its end: no step is left."""
    before = names["model"].get_weights()
    again = run_page("interruptions.md", {})
    assert again["model"].history.history == {}
    assert all(map(np.array_equal, before, again["model"].get_weights()))


def check_workers(names):
    perplexity = names["model"].history.history["perplexity"][0]
    assert perplexity < names["tokenizer"].vocabulary_size


def check_pictures(names):
    for name in ("attention.png", "steps.png"):
        assert os.path.getsize(name) > 10_000


CHECKS = {
    "layers.md": check_language_model,
    "positional-encodings.md": check_tagger,
    "interruptions.md": check_interruption,
    "distributed-training.md": check_workers,
    "explorer.md": check_pictures,
}


def test_pages_and_navigation():
    assert set(PAGES) == {*WITH_CODE, *WITHOUT_CODE}
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").splitlines()
    start = lines.index("nav:") + 1
    end = next(n for n in range(start, len(lines)) if lines[n][:1].strip())
    nav = yaml.safe_load("\n".join(lines[start:end]))
    listed = {p for group in nav for p in re.findall(r"[\w-]+\.md", str(group)) if p in PAGES}
    assert listed >= set(PAGES)


def headings_of(path):
    """The anchors of a Markdown file."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", [*(f"docs/{name}" for name in PAGES), "README.md", *REPOSITORY])
def test_links_lead_to_files_and_headings(page):
    page = ROOT / page
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        path = (page.parent / path).resolve() if path else page
        assert path.exists(), target
        assert not anchor or anchor in headings_of(path), target


def test_architecture_names_every_folder_and_module():
    listing = PAGES["architecture.md"].partition("```\nkeras_transformer/\n")[2].partition("```")[0]
    named = re.findall(r"^  (\w+)(?:\.py|/) ", listing, flags=re.MULTILINE)
    inside = [path for path in (ROOT / "keras_transformer").iterdir() if path.stem[0] != "_"]
    assert sorted(named) == sorted(p.stem for p in inside if p.is_dir() or p.suffix == ".py")
