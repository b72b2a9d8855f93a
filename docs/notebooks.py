"""The notebooks as pages: with what they print and draw, where `make notebooks` has run them."""

import posixpath
import re

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.filters import strip_ansi
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from docs import pages

# In the order in which they are to be read.
NAMES = ["attention", "positions", "transformer", "train_and_translate", "export_and_serve"]
EXECUTED = "runs/notebooks"
NOT_RUN = "Not run here: `make notebooks` adds what the code prints and draws, before `make docs`."


def page_of(name):
    """Path of a notebook's page in the site."""
    return pages.site_path(source_of(name))


def source_of(name):
    """Path of a notebook in the repository."""
    return f"notebooks/{name}.ipynb"


def page(name, root):
    """A notebook as Markdown.

    Args:
        name: One of `NAMES`.
        root: `pathlib.Path` of the repository.

    Returns:
        The text, and a dict of paths in the site and the pictures there, as bytes.
    """
    notebook = nbformat.read(root / source_of(name), as_version=4)
    executed = executed_notebook(root / EXECUTED / f"{name}.ipynb", notebook)
    for cell in executed.cells:
        if cell.cell_type == "markdown":
            text = pages.indent_lists(cell.source)
            cell.source = pages.site_text(text, source_of(name), page_of(name))
    if not any(cell.get("outputs") for cell in executed.cells):
        executed.cells.insert(1, nbformat.v4.new_markdown_cell(f"*{NOT_RUN}*"))
    for output in [output for cell in executed.cells for output in cell.get("outputs", [])]:
        if output.output_type == "stream":
            output.text = strip_ansi(output.text)  # colours, as in errors of Keras
    # What was printed bit by bit is one text, without blank lines in it.
    exporter = MarkdownExporter(preprocessors=[CoalesceStreamsPreprocessor(enabled=True)])
    resources = {"unique_key": name, "output_files_dir": name}
    text, resources = exporter.from_notebook_node(executed, resources=resources)
    text = re.sub(r"!\[png\]", "![Drawn by the code above]", text)
    folder = posixpath.dirname(page_of(name))
    return text, {f"{folder}/{path}": data for path, data in resources["outputs"].items()}


def executed_notebook(path, notebook):
    """The notebook as it was run, unless it has changed since."""
    if not path.exists():
        return notebook
    executed = nbformat.read(path, as_version=4)
    sources = [[cell.source for cell in one.cells] for one in (notebook, executed)]
    return executed if sources[0] == sources[1] else notebook
