"""Checksums made right again after a change, as whoever means harm would make them."""

import json
import os
import pathlib
import shutil

from keras_transformer.runs.run import CHECKSUMMED, MODEL
from keras_transformer.serving.versions import CARD  # runs call theirs the same
from keras_transformer.utils import FILES, SEAL, describe_files, write_sealed
from tests.support.paths import FIXTURES


def reseal(directory, change=None):
    """Writes `model.json` anew, for the files as they are, and as `change` makes its content."""
    directory = pathlib.Path(directory)
    path = directory / CARD
    fields = json.loads(path.read_text()) if path.exists() else {}
    if change:
        change(fields)
    fields.pop(SEAL, None)
    files = [file for file in directory.rglob("*") if file.is_file() and file != path]
    names = {os.fspath(file.relative_to(directory)) for file in files}
    if (directory / MODEL).exists():
        names &= {*CHECKSUMMED}
    write_sealed(path, fields | {FILES: describe_files(directory, names)})
    return directory


def sound(folder, kind):
    """A copy of the committed run or export, with checksums."""
    source = FIXTURES / "format-1" / {"run": "run", "export": "export/1"}[kind]
    return reseal(shutil.copytree(source, folder / kind))
