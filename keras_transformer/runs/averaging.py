"""Averages checkpoints: the weights of some files, and of a run into a new one."""

import io
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.runs.checkpoints import check_checksum
from keras_transformer.runs.opening import load
from keras_transformer.runs.run import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    EXAMPLES,
    SCORES,
    WEIGHTS_PATTERN,
    Run,
    rank,
    ranking_key,
)
from keras_transformer.tokenizers import saved
from keras_transformer.utils import Path, check_is_free, creating, describe_corruption, replacing

if TYPE_CHECKING:
    import keras


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Writes the arithmetic mean of several weights files.

    "Attention Is All You Need" (§6.1) averages the last checkpoints of a training.

    Args:
        paths: Names of `.weights.h5` files of one architecture.
        output: Name of the file to write, which may be one of them.

    Raises:
        ValueError: If no file is given, one cannot be read, or weights differ in name or shape or
            are not finite.

    Example:

    >>> names = ["1.weights.h5", "2.weights.h5"]
    >>> for name in names:
    ...     history = model.fit(dataset, shuffle=False, verbose=0)
    ...     model.save_weights(name)
    >>> average_checkpoints(names, "mean.weights.h5")
    >>> model.load_weights("mean.weights.h5")
    """
    import h5py  # not needed for exports

    if not paths:
        raise ValueError("paths must not be empty: give at least one weights file.")
    means = _read_weights(paths[0])
    for count, path in enumerate(paths[1:], start=2):
        weights = _read_weights(path)
        for name in means.keys() | weights.keys():
            shapes = [x[name].shape if name in x else "none" for x in (means, weights)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{path} must have the weights of {paths[0]}, but {name} has shape "
                    f"{shapes[1]} instead of {shapes[0]}: average checkpoints of one training."
                )
            means[name] += (weights[name] - means[name]) / count
    with open(paths[0], "rb") as file:
        content = io.BytesIO(file.read())  # a copy of the first file, with other numbers
    with h5py.File(content, "r+") as file:
        for name, mean in means.items():
            file[name][...] = mean
    with replacing(output) as name, open(name, "wb") as file:
        file.write(content.getbuffer())


def load_mean(run: Run, model: "keras.Model", checkpoints: Iterable[dict[str, Any]]) -> None:
    """Loads the mean of several weights of a run, of its `checkpoints`, into a built model."""
    files: list[str] = []
    for one in checkpoints:
        if not re.fullmatch(WEIGHTS_PATTERN, str(one["file"])):
            raise ValueError(f"The checkpoint {one['file']!r} is not a file of {run}.")
        files.append(run.file(CHECKPOINTS, one["file"]))
        check_checksum(files[-1], one["sha256"])
    with tempfile.TemporaryDirectory() as folder:
        mean = os.path.join(folder, "mean.weights.h5")
        average_checkpoints(files, mean)
        try:
            model.load_weights(mean)
        except ValueError as error:  # of several lines
            raise ValueError(describe_corruption(files[0], error)) from None


def average(path: Path, output: Path, number: int = 5, by: str = "best") -> None:
    """Averages checkpoints of a run into a new run directory.

    The mean of the `"best"` or the `"last"` checkpoints is validated like the run; a warning is
    printed on stderr if it is worse than the best one.
    """
    run = Run(path)
    state = run.read_state()
    if by not in ("best", "last"):
        raise ValueError(f'by must be "best" or "last", received {by!r}.')
    if state is None:
        raise ValueError(f"{path} has no checkpoints: give the --output of a training.")
    chosen = list_checkpoints(state, by)
    if not 1 <= number <= len(chosen):
        raise ValueError(
            f"number must be from 1 to {len(chosen)}, the {by} checkpoints that {path} has (train "
            f"--keep-checkpoints keeps more), received {number}."
        )
    check_is_free(output)
    chosen = chosen[:number]
    # After errors, as importing TensorFlow takes seconds.
    from keras_transformer.runs.validation import validate_translator

    translator, history = load(run), state["history"]
    load_mean(run, translator.model, chosen)
    scores = validate_translator(run, translator)
    names, best = ("step", "val_loss", *SCORES), rank(state)[0]["epoch"]
    joined = {
        f"epoch {epoch}": {x: history[epoch - 1][x] for x in names if x in history[epoch - 1]}
        for epoch in sorted(one["epoch"] for one in chosen)
    }
    is_other = list(joined) != [f"epoch {best}"]  # else its scores may differ by rounding
    monitor, alone = state["monitor"], history[best - 1]
    if scores and is_other and ranking_key(monitor, scores) > ranking_key(monitor, alone):
        print(
            f"warning: the mean of {', '.join(joined)} ({monitor} {scores[monitor]:.4g}) is worse "
            f"than epoch {best} ({alone[monitor]:.4g})",
            file=sys.stderr,
        )
    with creating(output) as temporary:
        for name in (*saved.paths(run), *map(run.file, (CONFIG, DATA, EXAMPLES))):
            if os.path.exists(name):
                shutil.copy(name, temporary)
        Run(temporary).write_model(translator.model, {"metrics": scores, "mean_of": joined})


def list_checkpoints(state: dict[str, Any], by: str) -> list[dict[str, Any]]:
    """Lists the best or the last kept weights of a training, up to the first that is not kept."""
    history, epochs = state["history"], list(range(len(state["history"]), 0, -1))
    if by == "best":
        epochs.sort(key=lambda epoch: (ranking_key(state["monitor"], history[epoch - 1]), epoch))
    kept = {one["epoch"]: one for one in state["checkpoints"]}  # some best and some last ones
    return [kept[epoch] for epoch in itertools.takewhile(kept.__contains__, epochs)]


def _read_weights(path):
    """Reads the arrays of a weights file by name, in float64."""
    import h5py

    arrays = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset) and name != "vars/layers":  # older files do not have it
            if item.external or item.is_virtual:
                raise ValueError(f"{path} must hold its arrays, but {name} is in another file.")
            is_small = item.dtype.itemsize == 1 and name != "vars/positions"  # which is a name
            if is_small or item.dtype.kind == "V":
                dtype = item.attrs.get("dtype", item.dtype)
                raise ValueError(
                    f"{path} holds {name} in {dtype}: average weights in float32 or float16, "
                    "before they are quantized."
                )
            arrays[name] = item[...].astype("float64")
            if not np.isfinite(arrays[name]).all():
                raise ValueError(
                    f"The weights in {path} must be finite, received others in {name}."
                )

    try:
        with h5py.File(os.fspath(path), "r") as file:
            file.visititems(collect)
    except OSError as error:
        raise ValueError(f"{path} is not a readable weights file: {error}.") from error
    return arrays
