"""Every notebook runs from top to bottom, and is committed without outputs.

Numbers are checked in the notebooks themselves, by asserts that a reader sees.
"""

import ast

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.paths import ROOT

# How many pictures each draws.
PICTURES = {
    "attention": 8,
    "positions": 5,
    "transformer": 6,
    "train_and_translate": 5,
    "export_and_serve": 2,
}
FOLDER = ROOT / "notebooks"


def code_of(notebook):
    """The cells' code as Python, without the lines that are IPython's own."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    lines = [line for cell in cells for line in cell.splitlines() if not line.startswith("%")]
    return ast.parse("\n".join(lines))


def test_all_notebooks_are_run_here():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_outputs_are_stripped(name):
    for cell in nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None


@pytest.mark.parametrize("name", PICTURES)
def test_it_shows_the_packages_own_layers(name):
    tree = code_of(nbformat.read(FOLDER / f"{name}.ipynb", as_version=4))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert "keras_transformer" in {alias.name for node in imported for alias in node.names}
    assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)), "a layer of its own"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the kernel's sockets, not ours
@pytest.mark.parametrize("name", PICTURES)
def test_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == PICTURES[name]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Warning" not in printed and "Traceback" not in printed
    if name == "train_and_translate":
        share = float(printed.split("held-out dates: ")[1].split(" %")[0])
        assert share >= 97
        assert "['1989-07-14', '1989-11-09']" in printed, "the exported model's answers"
