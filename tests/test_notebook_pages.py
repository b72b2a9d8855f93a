"""Notebooks as pages of the site: with what they print and draw once they have been run."""

import base64
import re

import nbformat
import pytest

from tests.support.paths import ROOT

pytest.importorskip("nbconvert", reason="is in the extra docs, which CI installs for make docs")
from docs import notebooks  # noqa: E402

PICTURE = b"\x89PNG\r\n\x1a\n"
CELLS = (
    nbformat.v4.new_markdown_cell("# A [model](transformer.ipynb)"),
    nbformat.v4.new_code_cell("1"),
)
SHOWN = nbformat.v4.new_output("display_data", {"image/png": base64.b64encode(PICTURE).decode()})
SAID = [nbformat.v4.new_output("stream", text=text) for text in ("\x1b[1mseven\n", "eight\n")]


@pytest.fixture
def root(tmp_path):
    """A repository with the notebook `attention`, and its directory of those that were run."""
    (tmp_path / notebooks.EXECUTED).mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / notebooks.source_of("transformer")).touch()
    write(tmp_path / notebooks.source_of("attention"), CELLS)
    return tmp_path


def write(path, cells):
    metadata = {"language_info": {"name": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)


def ran(source="1"):
    cell = nbformat.v4.new_code_cell(source, outputs=[*SAID, SHOWN], execution_count=1)
    return [CELLS[0], cell]


def test_one_that_was_run(root):
    write(root / notebooks.EXECUTED / "attention.ipynb", ran())
    text, pictures = notebooks.page("attention", root)
    assert text.startswith("# A [model](transformer.md)")
    assert "    seven\n    eight\n" in text and notebooks.NOT_RUN not in text
    ((path, data),) = pictures.items()
    assert data == PICTURE
    (shown,) = re.findall(r"!\[Drawn by the code above\]\((.*)\)", text)
    assert path == f"notebooks/{shown}"


@pytest.mark.parametrize("source", [None, "2"])
def test_one_that_was_not_run_or_has_changed_since(root, source):
    if source:
        write(root / notebooks.EXECUTED / "attention.ipynb", ran(source))
    text, pictures = notebooks.page("attention", root)
    assert notebooks.NOT_RUN in text and "```python\n1\n```" in text
    assert not pictures


def test_all_are_pages():
    files = (ROOT / "notebooks").glob("*.ipynb")
    assert {file.stem for file in files} == set(notebooks.NAMES)
    for name in notebooks.NAMES:
        text, _ = notebooks.page(name, ROOT)
        assert text.startswith("# ") and ".ipynb)" not in text
