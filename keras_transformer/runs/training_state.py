"""The state of a training as named arrays, and back: variables, metrics of workers, callbacks."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.training.cluster import joined_cluster
from keras_transformer.training.distribution import gather_from_workers, is_multiworker
from keras_transformer.utils import Tensor

METRICS = "metrics"
GROUPS = ("model", "optimizer", METRICS)
SIMPLE = (bool, int, float, type(None), np.number)  # attributes of callbacks that are saved


# --- variables ---


def read_variables(model: keras.Model) -> dict[str, np.ndarray]:
    """Reads every variable of a compiled and built model.

    Returns:
        {name: array}: weights and states of random generators under "model/", the optimizer's
        variables under "optimizer/", those of the metrics under "metrics/".
    """
    return {name: variable.numpy() for name, variable in _variables(model)}


def write_variables(
    model: keras.Model, arrays: Mapping[str, np.ndarray], metrics: bool, source: str
) -> None:
    """Sets the variables to those that `read_variables` has read from a model like this.

    Args:
        model: A compiled and built model, whose layers may have other numbers in their names.
        arrays: {name: array}; bfloat16 as uint16 of the same bytes.
        metrics: Whether to set those of the metrics alone, or all others.
        source: Where the arrays are from, for the error.

    Raises:
        ValueError: If the names or shapes differ.
    """
    variables = dict(_variables(model))
    known = {_uncounted(name): name for name in arrays if name.split("/")[0] in GROUPS}
    wanted = {_uncounted(name): name for name in variables}
    for plain in wanted.keys() | known.keys():
        one, other = known.get(plain), wanted.get(plain)
        shapes = one and arrays[one].shape, other and tuple(variables[other].shape)
        if shapes[0] != shapes[1]:
            there, here = ("nothing" if x is None else f"shape {x}" for x in shapes)
            raise ValueError(
                f"{source} was saved by another model, optimizer or strategy: {one or other} has "
                f"there {there}, here {here}; go on with what it was begun with, or train anew "
                "into another directory."
            )
    for plain, name in wanted.items():
        if name.startswith(f"{METRICS}/") == metrics:
            value, dtype = arrays[known[plain]], variables[name].dtype.as_numpy_dtype
            if value.dtype != dtype and dtype == tf.bfloat16.as_numpy_dtype:
                value = value.view(dtype)
            variables[name].assign(value)


def _variables(model: keras.Model) -> Iterator[tuple[str, Tensor]]:
    """TensorFlow's variables by name; those that each replica counts by itself one by one."""
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


# --- metrics of the epoch under way: saved by the chief, restored by all workers ---


def gather_metrics(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Adds the metrics of the other workers; all workers must call this together.

    Args:
        strategy: Of the model.
        arrays: As `read_variables` returns them.

    Returns:
        The same, with "metrics/…@k" for replica k of all workers.
    """
    if not is_multiworker(strategy):
        return dict(arrays)
    mine = {name: array for name, array in arrays.items() if name.startswith(f"{METRICS}/")}
    joined = {name: array for name, array in arrays.items() if name not in mine}
    flat = [array.astype("float64").ravel() for array in mine.values()]
    local = len(strategy.extended.worker_devices)
    for worker, row in enumerate(
        gather_from_workers(strategy, np.concatenate([np.zeros(0), *flat]))
    ):
        for (name, array), values in zip(
            mine.items(), np.split(row, np.cumsum([len(x) for x in flat])[:-1]), strict=True
        ):
            plain, _, replica = name.rpartition("@")
            number = worker * local + int(replica)
            joined[f"{plain}@{number}"] = values.astype(array.dtype).reshape(array.shape)
    return joined


def scatter_metrics(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Leaves the metrics that this worker restores.

    Args:
        strategy: Of the model.
        arrays: As `gather_metrics` has returned them, maybe with another number of workers, or with
            one device: then the first replica restores the sum of all.
    """
    several, replicas = is_multiworker(strategy), strategy.num_replicas_in_sync
    if not several and replicas > 1:
        return dict(arrays)
    local = len(strategy.extended.worker_devices) if several else 1
    first = joined_cluster().index * local if several else 0
    counted = [name for name in arrays if name.startswith(f"{METRICS}/")]
    own = {name: array for name, array in arrays.items() if name not in counted}
    parts = sorted({int(name.rpartition("@")[2]) for name in counted})
    for plain in {name.rpartition("@")[0] for name in counted}:
        per_replica = [arrays[f"{plain}@{part}"] for part in parts]
        total = np.sum(per_replica, axis=0, dtype=per_replica[0].dtype)
        for replica in range(local):
            number = first + replica
            mine = per_replica[number] if len(parts) == replicas else total * (number == 0)
            own[f"{plain}@{replica}"] = mine
    return own


# --- callbacks ---


def get_states(
    callbacks: Sequence[keras.callbacks.Callback],
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Reads the states of callbacks.

    Args:
        callbacks: Those with a method `get_state` return their state; of any others, it is the
            numbers among the attributes, but for arguments, and lists of arrays, such as the best
            weights.

    Returns:
        The states, which JSON can hold, and {name: array}.
    """
    states: list[Any] = []
    arrays: dict[str, np.ndarray] = {}
    for number, callback in enumerate(callbacks):
        if hasattr(callback, "get_state"):
            states.append(callback.get_state())
            continue
        arguments = inspect.signature(type(callback).__init__).parameters
        state: dict[str, Any] = {}
        for name, value in vars(callback).items():
            if isinstance(value, SIMPLE) and name not in arguments:
                state[name] = value
            elif _is_arrays(value):
                arrays |= {f"callbacks/{number}/{name}/{k}": one for k, one in enumerate(value)}
        states.append(state)
    return states, arrays


def set_states(
    callbacks: Sequence[keras.callbacks.Callback],
    states: Sequence[Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Restores the states of callbacks.

    Args:
        callbacks: Callbacks like those that `get_states` has read.
        states: The states that it returned.
        arrays: {name: array}, the arrays that it returned among others.
    """
    for number, (callback, state) in enumerate(zip(callbacks, states, strict=True)):
        if hasattr(callback, "set_state"):
            callback.set_state(state)
            continue
        vars(callback).update(state)
        lists: dict[str, list[np.ndarray]] = {}
        for name, array in arrays.items():
            if name.startswith(f"callbacks/{number}/"):
                lists.setdefault(name.split("/")[-2], []).append(array)
        vars(callback).update(lists)


def _is_arrays(value):
    return isinstance(value, list) and value and all(isinstance(x, np.ndarray) for x in value)
