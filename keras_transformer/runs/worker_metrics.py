"""What each worker has counted of the epoch under way: saved by the chief, restored by all."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_transformer.runs.variables import METRICS
from keras_transformer.training.cluster import joined_cluster
from keras_transformer.training.distribution import gather, is_multiworker


def of_all_workers(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Adds what the other workers have counted; all workers have to ask at once.

    Args:
        strategy: Of the model.
        arrays: What `read_variables` has read.

    Returns:
        The same, with "metrics/…@k" for replica k of all workers.
    """
    if not is_multiworker(strategy):
        return dict(arrays)
    mine = {name: array for name, array in arrays.items() if name.startswith(f"{METRICS}/")}
    joined = {name: array for name, array in arrays.items() if name not in mine}
    flat = [array.astype("float64").ravel() for array in mine.values()]
    local = len(strategy.extended.worker_devices)
    for worker, row in enumerate(gather(strategy, np.concatenate([np.zeros(0), *flat]))):
        for (name, array), values in zip(
            mine.items(), np.split(row, np.cumsum([len(x) for x in flat])[:-1]), strict=True
        ):
            plain, _, replica = name.rpartition("@")
            number = worker * local + int(replica)
            joined[f"{plain}@{number}"] = values.astype(array.dtype).reshape(array.shape)
    return joined


def of_this_worker(
    strategy: tf.distribute.Strategy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What of it this worker goes on from.

    Args:
        strategy: Of the model.
        arrays: What `of_all_workers` has returned, maybe of another number of workers, or of one
            device: then the first replica goes on from what all had counted.
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
        of_each = [arrays[f"{plain}@{part}"] for part in parts]
        total = np.sum(of_each, axis=0, dtype=of_each[0].dtype)
        for replica in range(local):
            number = first + replica
            mine = of_each[number] if len(parts) == replicas else total * (number == 0)
            own[f"{plain}@{replica}"] = mine
    return own
