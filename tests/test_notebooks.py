"""Every notebook runs from top to bottom, and is committed without outputs."""

import base64
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.paths import ROOT

# How many pictures each draws.
PICTURES = dict(attention=8, positions=5, transformer=6, train_and_translate=5, export_and_serve=2)
FOLDER = ROOT / "notebooks"


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_what_is_committed():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(PICTURES)
    for name in PICTURES:
        cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells), name


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the kernel's sockets, not ours
@pytest.mark.parametrize("name", PICTURES)
def test_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook, place = read(name), {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == PICTURES[name]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "Warning" not in printed and "Traceback" not in printed
    if name == "train_and_translate":
        assert float(printed.split("held-out dates: ")[1].split(" %")[0]) >= 97
        assert "['1989-07-14', '1989-11-09']" in printed, "the exported model's answers"


def test_pages(tmp_path):
    pytest.importorskip("nbconvert", reason="is in the extra docs, which CI installs for make docs")
    from docs import notebooks

    assert set(notebooks.NAMES) == set(PICTURES)
    picture = b"\x89PNG\r\n\x1a\n"
    drawn = {"image/png": base64.b64encode(picture).decode()}
    outputs = [nbformat.v4.new_output("stream", text=x) for x in ("\x1b[1mseven\n", "eight\n")]
    outputs.append(nbformat.v4.new_output("display_data", drawn))

    def write(path, source, **ran):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, **ran)])
        notebook.metadata["language_info"] = {"name": "python"}
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, tmp_path / path)

    write(notebooks.source_of("attention"), "1")
    for source in ("2", "1"):  # one that has changed since it was run, and the same
        path = f"{notebooks.EXECUTED}/attention.ipynb"
        write(path, source, outputs=outputs, execution_count=1)
        text, pictures = notebooks.page("attention", tmp_path)
        assert "```python\n1\n```" in text
        assert (notebooks.NOT_RUN in text) == (not pictures) == (source == "2")
    assert "    seven\n    eight\n" in text
    (path,) = re.findall(r"!\[Drawn by the code above\]\((.*)\)", text)
    assert pictures == {f"notebooks/{path}": picture}
