"""Means of weights: of several checkpoints, and the running mean that an optimizer keeps."""

import contextlib
import os

import h5py
import numpy as np


def average_checkpoints(paths, output):
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
def averaged_weights(model):
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
