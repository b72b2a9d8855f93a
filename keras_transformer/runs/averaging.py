"""Means of weights: of several checkpoints, and the running mean that an optimizer keeps."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from keras_transformer.runs.atomic_files import creating, replacing
from keras_transformer.runs.files import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    MODEL,
    SOURCE,
    TARGET,
    rank,
    read_state,
)
from keras_transformer.runs.load import load
from keras_transformer.typing import Path

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
        ValueError: If there is no file, one is none, or their weights differ in name or shape.
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
        whole = file.read()  # everything but the numbers stays as in the first one
    with open(output, "wb") as file:
        file.write(whole)
    with h5py.File(output, "r+") as file:
        for name, mean in means.items():
            file[name][...] = mean


@contextlib.contextmanager
def averaged_weights(model: "keras.Model") -> Iterator[None]:
    """Lets a model that is being trained use the running mean (EMA) of its weights for a while.

    Does nothing where the optimizer keeps no such mean.

    Args:
        model: A compiled and built model.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of loss scaling
    if not optimizer.use_ema:
        yield
        return
    weights = [variable.numpy() for variable in model.trainable_variables]
    model.optimizer.finalize_variable_values(model.trainable_variables)
    try:
        yield
    finally:
        for variable, value in zip(model.trainable_variables, weights, strict=True):
            variable.assign(value)


def write_model(path: Path, model: "Transformer", checkpoints: Iterable[dict[str, Any]]) -> None:
    """Writes the mean of some checkpoints of a run as its `model.keras`.

    Args:
        path: The run directory.
        model: A built `Transformer`; its weights are overwritten.
        checkpoints: Some of `read_state(path)["checkpoints"]`.
    """
    folder = os.path.join(path, CHECKPOINTS)
    mean = os.path.join(folder, "tmp.mean.weights.h5")
    average_checkpoints([os.path.join(folder, one["file"]) for one in checkpoints], mean)
    model.load_weights(mean)
    os.remove(mean)
    with replacing(os.path.join(path, MODEL)) as name:
        model.save(name)


def average(path: Path, output: Path, number: int = 5, by: str = "best") -> None:
    """Makes a run directory whose model is the mean of several checkpoints of another run.

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
            f"{path} holds {held} checkpoints, received number={number}: ask for at most as many, "
            "or train with a larger --keep-checkpoints."
        )
    if os.path.exists(output):
        raise ValueError(f"{output} exists already: choose another name.")
    chosen = rank(state)[:number] if by == "best" else state["checkpoints"][-number:]
    with creating(output) as temporary:
        os.makedirs(os.path.join(temporary, CHECKPOINTS))
        for name in (CONFIG, SOURCE, TARGET, DATA):
            if os.path.exists(os.path.join(path, name)):
                shutil.copy(os.path.join(path, name), temporary)
        for one in chosen:
            shutil.copy(os.path.join(path, CHECKPOINTS, one["file"]), f"{temporary}/{CHECKPOINTS}")
        write_model(temporary, load(path).model, chosen)
        shutil.rmtree(os.path.join(temporary, CHECKPOINTS))


def _read(path):
    """The arrays of a weights file by name, in float64."""
    arrays = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[...].astype("float64")

    try:
        with h5py.File(os.fspath(path), "r") as file:
            file.visititems(collect)
    except OSError as error:
        raise ValueError(f"{path} is no weights file that can be read: {error}.") from error
    return arrays
