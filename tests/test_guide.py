"""The code of every page of the guide runs, in the order of the page, and gives what it says."""

import re
import shutil

import matplotlib.pyplot as plt
import pytest

from tests.support import examples
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
WITH_CODE = [name for name, text in PAGES.items() if "```python\n" in text]
for page in ("getting-started.md", "serving.md"):
    WITH_CODE[WITH_CODE.index(page)] = pytest.param(page, marks=pytest.mark.slow)


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", PAGES[page], flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_of_page(page, tmp_path_factory, tmp_path, monkeypatch, capsys):
    """In a copy of a user's files; comments behind calls of print promise, "…" is anything."""
    shutil.copytree(examples.user_files(tmp_path_factory), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    names = {}
    for block in blocks_of(page):
        above = PAGES[page].partition(block)[0].count("\n")
        exec(compile("\n" * above + block, DOCS / page, "exec"), names)
    plt.close("all")
    printed = capsys.readouterr().out.splitlines()
    comments = r"^ *print\(.*\)  # (?!for example)(.+)$"
    for promised in re.findall(comments, "\n".join(blocks_of(page)), re.M):
        pattern = re.escape(promised.partition(": ")[0]).replace("…", ".*")
        assert any(re.match(pattern, line) for line in printed), (promised, printed)


# The README, in which links lead to files of the repository.
README = (ROOT / "README.md").read_text(encoding="utf-8")
TRAINING, LAYER = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_links_of_the_readme_lead_somewhere():
    text = re.sub(r"^```.*?^```", "", README, flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s:]+)\)", text)
    missing = [x for x in targets if not (ROOT / x.partition("#")[0]).exists()]
    assert len(targets) > 5 and missing == []


def test_layer_of_the_readme_and_its_script_which_the_guide_starts_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(LAYER, names)
    assert names["classifier"].output_shape == (None, 2)
    assert (tmp_path / "classifier.keras").exists()
    assert blocks_of("getting-started.md")[0] == TRAINING


def test_architecture_names_every_folder_and_module():
    listing = PAGES["architecture.md"].partition("```\nkeras_transformer/\n")[2].partition("```")[0]
    named = re.findall(r"^  (\w+)(?:\.py|/) ", listing, flags=re.MULTILINE)
    inside = [path for path in (ROOT / "keras_transformer").iterdir() if path.stem[0] != "_"]
    assert sorted(named) == sorted(p.stem for p in inside if p.is_dir() or p.suffix == ".py")
