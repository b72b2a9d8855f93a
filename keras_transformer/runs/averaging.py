"""Means of the weights of several checkpoints, and what a run's model is."""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from keras_transformer.atomic_files import creating, replacing
from keras_transformer.inspection.probing import Probe
from keras_transformer.runs.arrays_file import file_checksum
from keras_transformer.runs.files import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    EXAMPLES,
    MODEL,
    OWNED,
    demerit,
    rank,
    read_state,
    write_scores,
)
from keras_transformer.runs.history import SCORES
from keras_transformer.runs.load import load
from keras_transformer.streams import lasting_stderr
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path
from keras_transformer.wording import counted

if TYPE_CHECKING:
    import keras

    from keras_transformer.transformer import Transformer


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Writes the arithmetic mean of several weights files.

    Averaging the last checkpoints of a training is how "Attention Is All You Need" (§6.1) made its
    models.

    Args:
        paths: Names of `.weights.h5` files of one architecture.
        output: Name of the file to write, which may be one of them.

    Raises:
        ValueError: If there is no file, one is none, or their weights differ in name or shape or
            are not finite.

    Example:

    >>> names = ["1.weights.h5", "2.weights.h5"]
    >>> for name in names:
    ...     history = model.fit(dataset, shuffle=False, verbose=0)
    ...     model.save_weights(name)
    >>> average_checkpoints(names, "mean.weights.h5")
    >>> model.load_weights("mean.weights.h5")
    """
    if not paths:
        raise ValueError("There is no checkpoint to average: give at least one weights file.")
    means = _read(paths[0])
    for count, path in enumerate(paths[1:], start=2):
        weights = _read(path)
        for name in means.keys() | weights.keys():
            shapes = [np.shape(of.get(name)) if name in of else None for of in (means, weights)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{path} does not fit {paths[0]}: {name} has shape {shapes[1]}, expected "
                    f"{shapes[0]}; average checkpoints of one training."
                )
            means[name] += (weights[name] - means[name]) / count
    with open(paths[0], "rb") as file:
        whole = io.BytesIO(file.read())  # everything but the numbers stays as in the first one
    with h5py.File(whole, "r+") as file:
        for name, mean in means.items():
            file[name][...] = mean
    with replacing(output) as name, open(name, "wb") as file:
        file.write(whole.getbuffer())


def load_mean(path: Path, model: "keras.Model", checkpoints: Iterable[dict[str, Any]]) -> None:
    """Loads the mean of some checkpoints of a run into a model.

    Args:
        path: The run directory.
        model: A built model like the one that was trained.
        checkpoints: Some of `read_state(path)["checkpoints"]`.
    """
    files: list[str] = []
    for one in checkpoints:
        if not re.fullmatch(OWNED, str(one["file"])):
            raise ValueError(f"{path} names the checkpoint {one['file']!r}, which is none of it.")
        files.append(os.path.join(path, CHECKPOINTS, one["file"]))
        if file_checksum(files[-1]) != one["sha256"]:
            raise ValueError(
                f"{files[-1]} is damaged (its checksum is another than when it was written): put "
                "back a copy of it."
            )
    Probe(files).answers()  # before native code reads them here
    with tempfile.TemporaryDirectory() as folder:
        mean = os.path.join(folder, "mean.weights.h5")
        average_checkpoints(files, mean)
        model.load_weights(mean)


def write_weights(path: Path, model: "keras.Model") -> str:
    """Writes a `.weights.h5` file, whole or not at all; returns its checksum.

    HDF5 crashes the process where a disk is full. Of a `.keras` file, Keras writes all but the
    arrays itself, and those by way of the memory if there is enough.
    """
    with replacing(path) as name:
        archive = f"{name}.keras"
        try:
            model.save(archive)
            with zipfile.ZipFile(archive) as file, open(name, "wb") as copy:
                with file.open("model.weights.h5") as weights:
                    shutil.copyfileobj(weights, copy)
            return file_checksum(name)
        finally:
            with contextlib.suppress(OSError):
                os.remove(archive)


def write_model(path: Path, model: "Transformer", scores: dict[str, Any]) -> None:
    """Writes a run's `model.keras`, and beside it what it is (`files.write_scores`)."""
    # Never the scores of another model, whenever the process is killed: rather none.
    write_scores(path, {}, finished=False)
    with replacing(os.path.join(path, MODEL)) as name:
        model.save(name)
    write_scores(path, scores)


def members(state: dict[str, Any], checkpoints: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Names what a mean was joined from: {"epoch 3": its step and scores, …}."""
    names = "step", "val_loss", *SCORES
    rows = {one["epoch"]: state["history"][one["epoch"] - 1] for one in checkpoints}
    return {
        f"epoch {epoch}": {name: rows[epoch][name] for name in names if name in rows[epoch]}
        for epoch in sorted(rows)
    }


def is_worse(state: dict[str, Any], scores: dict[str, float], joined: dict[str, Any]) -> bool:
    """Tells whether a mean is worse than the best checkpoint of its training; if so, says so.

    Args:
        state: Of the training, as `read_state` returns it.
        scores: Of the mean.
        joined: The `members` of the mean; one checkpoint is its own mean.
    """
    monitor, best = state["monitor"], rank(state)[0]
    if list(joined) == [f"epoch {best['epoch']}"]:  # scored twice, it may differ by rounding
        return False
    alone = state["history"][best["epoch"] - 1]
    worse = demerit(monitor, scores) > demerit(monitor, alone)
    if worse:
        names = dict.fromkeys((monitor, "val_loss"))
        mean, one = (", ".join(f"{name} {x[name]:.4g}" for name in names) for x in (scores, alone))
        whole = f"the mean of {', '.join(joined)}" if len(joined) > 1 else next(iter(joined))
        print(f"{whole} ({mean}) is worse than epoch {best['epoch']} ({one})", file=sys.stderr)
    return worse


@lasting_stderr()
def average(path: Path, output: Path, number: int = 5, by: str = "best") -> None:
    """Makes a run directory whose model is the mean of several checkpoints of another run.

    It is validated as the run was; where it is worse than the best checkpoint, stderr says so.

    Args:
        path: A run directory.
        output: The directory to make; it holds what is needed to translate, evaluate and export.
        number: Number of checkpoints; as many must have been kept (`keep_checkpoints`).
        by: `"best"` or `"last"`.

    Raises:
        ValueError: If there are not as many checkpoints, or `output` exists.
    """
    state = read_state(path)
    if by not in ("best", "last"):
        raise ValueError(f'by must be "best" or "last", received {by!r}.')
    if state is None:
        raise ValueError(f"There is no checkpoint in {path}: give the --output of a training.")
    held = len(state["checkpoints"])
    if not 1 <= number <= held:
        raise ValueError(
            f"{path} holds {counted(held, 'checkpoint')}, received number={number}: give a number "
            f"from 1 to {held}, or train with a larger --keep-checkpoints."
        )
    if os.path.exists(output):
        raise ValueError(f"{output} exists already: choose another name.")
    chosen = rank(state)[:number] if by == "best" else state["checkpoints"][-number:]
    from keras_transformer.runs.validation import validate_as  # after mistakes: it takes seconds

    translator, joined = load(path), members(state, chosen)
    load_mean(path, translator.model, chosen)
    scores = validate_as(path, translator)
    if scores:
        is_worse(state, scores, joined)
    with creating(output) as temporary:
        others = (os.path.join(path, name) for name in (CONFIG, DATA, EXAMPLES))
        for name in (*saved.paths(path), *others):
            if os.path.exists(name):
                shutil.copy(name, temporary)
        write_model(temporary, translator.model, {"metrics": scores, "mean_of": joined})


def _read(path):
    """The arrays of a weights file by name, in float64."""
    arrays = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[...].astype("float64")
            if not np.isfinite(arrays[name]).all():
                raise ValueError(
                    f"{path} holds weights that are not finite, such as {name}: its training "
                    "diverged. Average checkpoints from before that."
                )

    try:
        with h5py.File(os.fspath(path), "r") as file:
            file.visititems(collect)
    except OSError as error:
        raise ValueError(f"{path} is no weights file that can be read: {error}.") from error
    return arrays
