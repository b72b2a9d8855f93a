"""Checksums made right again after a change, as whoever means harm would make them."""

import json
import os
import pathlib

from keras_transformer.runs.run import CHECKSUMMED, MODEL
from keras_transformer.serving.versions import CARD  # runs call theirs the same
from keras_transformer.utils import FILES, SEAL, describe_files, write_sealed


def reseal(directory, change=None):
    """Writes `model.json` anew, for the files as they are, and as `change` makes its content."""
    directory = pathlib.Path(directory)
    path = directory / CARD
    fields = json.loads(path.read_text()) if path.exists() else {}
    if change:
        change(fields)
    fields.pop(SEAL, None)
    if (directory / MODEL).exists():
        names = [name for name in CHECKSUMMED if (directory / name).is_file()]
    else:
        names = [
            os.path.relpath(os.path.join(place, name), directory)
            for place, _, found in os.walk(directory)
            for name in found
            if os.path.join(place, name) != os.fspath(path)
        ]
    write_sealed(path, fields | {FILES: describe_files(directory, names)})
    return directory
