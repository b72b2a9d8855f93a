"""All variables of a training as named arrays, and back."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.typing import Tensor

METRICS = "metrics"
GROUPS = ("model", "optimizer", METRICS)


def read_variables(model: keras.Model) -> dict[str, np.ndarray]:
    """Reads every variable of a model that is being trained.

    Args:
        model: A compiled and built model.

    Returns:
        {name: array}: weights and states of random generators under "model/", the optimizer's
        variables under "optimizer/", those of the metrics under "metrics/".
    """
    return {name: variable.numpy() for name, variable in _parts(model)}


def write_variables(
    model: keras.Model, arrays: Mapping[str, np.ndarray], metrics: bool, source: str
) -> None:
    """Sets the variables to what `read_variables` has read of a model like this.

    Args:
        model: A compiled and built model, which may count its layers' names otherwise.
        arrays: {name: array}; bfloat16 as uint16 of the same bytes.
        metrics: Whether to set those of the metrics alone, or all others.
        source: Name of what the arrays are from, for the error.

    Raises:
        ValueError: If the variables are not those that were read.
    """
    variables = dict(_parts(model))
    known = {_uncounted(name): name for name in arrays if name.split("/")[0] in GROUPS}
    wanted = {_uncounted(name): name for name in variables}
    for plain in wanted.keys() | known.keys():
        one, other = known.get(plain), wanted.get(plain)
        shapes = one and arrays[one].shape, other and tuple(variables[other].shape)
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{source} was saved by another model, optimizer or strategy: {one or other} has "
                f"there {_shape(shapes[0])}, here {_shape(shapes[1])}; go on with what it was "
                "begun with, or train anew into another directory."
            )
    for plain, name in wanted.items():
        if name.startswith(f"{METRICS}/") == metrics:
            value, dtype = arrays[known[plain]], variables[name].dtype.as_numpy_dtype
            if value.dtype != dtype and dtype == tf.bfloat16.as_numpy_dtype:
                value = value.view(dtype)
            variables[name].assign(value)


def _parts(model: keras.Model) -> Iterator[tuple[str, Tensor]]:
    """TensorFlow's variables by name; of what each replica counts for itself, those of each."""
    optimizer: Any = model.optimizer
    groups = model.variables, optimizer.variables if optimizer else [], model.metrics_variables
    for group, variables in zip(GROUPS, groups, strict=True):
        for number, variable in enumerate(variables):
            value = variable.value if isinstance(variable, keras.Variable) else variable
            name = f"{group}/{number}/{variable.path}"
            apart = value.synchronization == tf.VariableSynchronization.ON_READ
            replicas = getattr(value, "values", (value,)) if apart else (value,)
            for replica, part in enumerate(replicas):
                yield f"{name}@{replica}", part


def _uncounted(name):
    """A name without the numbers by which Keras tells layers of one class in a process apart."""
    return re.sub(r"_\d+(?=[/@_])", "", name)


def _shape(shape):
    return "nothing" if shape is None else f"shape {shape}"
