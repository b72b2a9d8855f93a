"""Reads and writes the state of a training: variables, metrics of workers, callbacks."""

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
SCALAR_TYPES = (bool, int, float, type(None), np.number)  # of saved attributes of callbacks


# --- variables ---


def read_variables(model: keras.Model) -> dict[str, np.ndarray]:
    """Reads every variable of a compiled and built model: {name: array}.

    Names begin with "model/" for weights and random generators, "optimizer/", or "metrics/".
    """
    return {name: variable.numpy() for name, variable in _iterate_variables(model)}


def write_variables(
    model: keras.Model, arrays: Mapping[str, np.ndarray], metrics: bool, source: str
) -> None:
    """Sets the variables of metrics, or all others, to the arrays of `read_variables`.

    The numbers in the names of layers may differ. `source` names the checkpoint in errors.
    """
    variables = dict(_iterate_variables(model))
    known = {_strip_numbers(name): name for name in arrays if name.split("/")[0] in GROUPS}
    wanted = {_strip_numbers(name): name for name in variables}
    for plain in wanted.keys() | known.keys():
        one, other = known.get(plain), wanted.get(plain)
        shapes = one and arrays[one].shape, other and tuple(variables[other].shape)
        if shapes[0] != shapes[1]:
            expected, received = ("missing" if x is None else f"of shape {x}" for x in shapes)
            raise ValueError(
                f"{one or other} must be {expected}, as in {source}, received {received}: resume "
                "with the same model, optimizer and strategy."
            )
    for plain, name in wanted.items():
        if name.startswith(f"{METRICS}/") == metrics:
            variables[name].assign(arrays[known[plain]])


def _iterate_variables(model: keras.Model) -> Iterator[tuple[str, Tensor]]:
    """Iterates over TensorFlow's variables by name, and over the copies of each replica."""
    optimizer: Any = model.optimizer
    groups = model.variables, optimizer.variables if optimizer else [], model.metrics_variables
    for group, variables in zip(GROUPS, groups, strict=True):
        for number, variable in enumerate(variables):
            value = variable.value if isinstance(variable, keras.Variable) else variable
            name = f"{group}/{number}/{variable.path}"
            is_local = value.synchronization == tf.VariableSynchronization.ON_READ
            replicas = getattr(value, "values", (value,)) if is_local else (value,)
            for replica, copy in enumerate(replicas):
                yield f"{name}@{replica}", copy


def _strip_numbers(name):
    """Strips the numbers that Keras adds to names of layers of the same class."""
    return re.sub(r"_\d+(?=[/@_])", "", name)


# --- metrics of the current epoch: saved by the chief, restored by all workers ---


def gather_metrics(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Gathers the metrics of all workers, which must call this together.

    Of the arrays of `read_variables`, there is then a "metrics/…@k" for each replica k of all.
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
    """Selects the metrics that this worker restores, of those that `gather_metrics` returned.

    If they are of another number of replicas, the first replica restores the sum of all.
    """
    several, replicas = is_multiworker(strategy), strategy.num_replicas_in_sync
    local = len(strategy.extended.worker_devices) if several else replicas
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
    """Reads the states of callbacks, which JSON can represent, and {name: array}.

    The state of a callback is the result of `get_state` if it has this method; else its attributes
    that are numbers, except arguments, or lists of arrays.
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
            if isinstance(value, SCALAR_TYPES) and name not in arguments:
                state[name] = value
            elif isinstance(value, list) and all(isinstance(x, np.ndarray) for x in value):
                arrays |= {f"callbacks/{number}/{name}/{k}": one for k, one in enumerate(value)}
        states.append(state)
    return states, arrays


def set_states(
    callbacks: Sequence[keras.callbacks.Callback],
    states: Sequence[Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Restores the states and arrays that `get_states` returned."""
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
