"""What each worker has counted of the epoch under way: saved by the chief, restored by all."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_transformer.runs.variables import METRICS
from keras_transformer.training.cluster import joined_cluster
from keras_transformer.training.workers import gather, is_multiworker


def of_all_workers(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Adds what the other workers have counted; all workers have to ask at once.

    Args:
        strategy: Of the model.
        arrays: What `read_variables` has read.

    Returns:
        The same, with "metrics/…@k" for worker k.
    """
    if not is_multiworker(strategy):
        return dict(arrays)
    mine = {name: array for name, array in arrays.items() if name.startswith(f"{METRICS}/")}
    joined = {name: array for name, array in arrays.items() if name not in mine}
    flat = [array.astype("float64").ravel() for array in mine.values()]
    for worker, row in enumerate(gather(strategy, np.concatenate([np.zeros(0), *flat]))):
        for (name, array), values in zip(
            mine.items(), np.split(row, np.cumsum([len(x) for x in flat])[:-1]), strict=True
        ):
            joined[_named(name, worker)] = values.astype(array.dtype).reshape(array.shape)
    return joined


def of_this_worker(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What of it this worker goes on from.

    Args:
        strategy: Of the model.
        arrays: What `of_all_workers` has returned, maybe of another number of workers: then the
            chief goes on from what all had counted.
    """
    if not is_multiworker(strategy):
        return dict(arrays)
    cluster = joined_cluster()
    counted = [name for name in arrays if name.startswith(f"{METRICS}/")]
    own = {name: array for name, array in arrays.items() if name not in counted}
    parts = {int(name.rpartition("@")[2]) for name in counted}
    for name in {_named(name, 0) for name in counted}:
        of_each = [arrays[_named(name, part)] for part in sorted(parts)]
        if len(parts) == len(cluster.addresses):
            own[name] = of_each[cluster.index]
        else:
            own[name] = np.sum(of_each, axis=0, dtype=of_each[0].dtype) * cluster.is_chief
    return own


def _named(name, part):
    return f"{name.rpartition('@')[0]}@{part}"
