"""Training on several devices and machines: strategies, communication, and lost workers."""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.kernels.tensorflow import machine
from keras_transformer.presets.options import STRATEGIES, check_value
from keras_transformer.special_ids import PAD
from keras_transformer.training.cluster import (
    START_TIMEOUT,
    Cluster,
    cluster_for_strategy,
    joined_cluster,
    wait_for_workers,
)
from keras_transformer.training.keras_workarounds import sum_over_replicas

CHECK_SECONDS = 3.0  # seconds between two checks of the other workers
MAX_MISSES = 3  # failed checks in a row after which a worker counts as lost
GRACE_SECONDS = 20.0  # seconds before this process is killed
# A GPU receives a batch between two steps. With only one ahead, it would wait for the next step.
AHEAD = tf.distribute.InputOptions(experimental_per_replica_buffer_size=3)


def make_strategy(
    name: str = "auto", logical_devices: int = 1, timeout: float = START_TIMEOUT
) -> tf.distribute.Strategy:
    """Chooses the devices to train on.

    With workers or several logical devices, call it before TensorFlow computes anything.

    Args:
        name: `"auto"`, all workers if TF_CONFIG names several, else all GPUs of this machine, else
            its CPU; `"one"`, the first GPU, else the CPU; `"mirrored"`, a copy of the model on
            each GPU, else on each logical CPU device; or `"multiworker"`, the same on each of the
            machines in TF_CONFIG, all of which run the same program.
        logical_devices: Number of devices to split the CPU into, to try `"mirrored"` without a GPU;
            ignored with workers.
        timeout: Seconds that workers wait for each other.

    Returns:
        A `tf.distribute.Strategy`. Build and compile the model inside its `scope()`.

    Raises:
        ValueError: If the name is unknown, TensorFlow has already been used, TF_CONFIG is missing
            or invalid, a worker does not respond, or Keras has another backend than TensorFlow.

    Example:

    >>> with make_strategy("auto").scope():
    ...     model = Transformer(8000, 8000, num_layers=2, d_model=64, num_heads=4, d_ff=128)
    """
    require_tensorflow("make_strategy")
    check_value("strategy", name, STRATEGIES)
    cluster = cluster_for_strategy(name)
    if cluster is not None:
        wait_for_workers(cluster, timeout)
        return tf.distribute.MultiWorkerMirroredStrategy()
    if logical_devices > 1:
        _split_cpu(logical_devices)
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    devices = gpus or (cpus if name == "mirrored" else cpus[:1])
    if name == "mirrored" or (name != "one" and len(devices) > 1):
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.OneDeviceStrategy(devices[0])


def _split_cpu(count):
    """Splits the CPU into several logical devices."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError:
        if len(tf.config.list_logical_devices("CPU")) != count:
            raise ValueError(
                "TensorFlow has already initialized the CPU: call make_strategy before."
            ) from None


def is_multiworker(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a strategy joins several processes."""
    kind = tf.distribute.MultiWorkerMirroredStrategy
    return isinstance(strategy, kind) and bool(strategy.cluster_resolver.cluster_spec().as_dict())


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process is the chief, or the only process: the one that writes files."""
    return not is_multiworker(strategy) or joined_cluster().is_chief


# Batches.


def distribute(strategy: tf.distribute.Strategy, dataset: Any) -> Any:
    """Makes each worker read its rows of the batches of a dataset of `make_dataset`.

    Keras would shard a `tf.data.Dataset` again, although workers may read different rows already.
    A worker without rows reads a row of padding. Other datasets are at most copied ahead to a GPU.
    """
    stream = getattr(dataset, "stream", None)
    if not is_multiworker(strategy):
        endless = stream is None or stream.repeat  # others tell how far they have been read
        is_ahead = machine.has_gpu() and isinstance(dataset, tf.data.Dataset) and endless
        return strategy.experimental_distribute_dataset(dataset, AHEAD) if is_ahead else dataset
    if stream is None:
        return dataset

    def make_worker_dataset(context):
        stream.shard = context.input_pipeline_id, context.num_input_pipelines
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        return dataset if replicas == 1 else split_for_replicas(dataset, replicas)

    return strategy.distribute_datasets_from_function(make_worker_dataset)


def split_for_replicas(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Splits each batch of nested ids `(B, …)` into one for each replica of a worker.

    Replica i reads the rows i, i + count …; if there are none, a row of PAD.
    """

    def take_every(x, number):
        rows = x[number::count]
        padding = tf.fill(tf.concat([[1], tf.shape(x)[1:]], axis=0), tf.cast(PAD, x.dtype))
        return tf.cond(tf.equal(tf.shape(rows)[0], 0), lambda: padding, lambda: rows)

    def split(*batch):
        return tf.data.Dataset.range(count).map(
            lambda number: tf.nest.map_structure(lambda x: take_every(x, number), batch)
        )

    return dataset.flat_map(split)


# Communication. Each of these functions returns only when all workers have called it.


def gather_from_workers(
    strategy: tf.distribute.Strategy, values: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Gathers numbers `(N,)` of each worker on all of them: float64 `(workers, N)`."""
    cluster = joined_cluster()
    table = np.zeros([len(cluster.addresses), len(values)])
    table[cluster.index] = values

    def add_on_replica(values):
        replica = tf.distribute.get_replica_context()
        local = len(strategy.extended.worker_devices)  # replicas of this worker; the first counts
        first = tf.cast(replica.replica_id_in_sync_group % local == 0, tf.float64)
        return sum_over_replicas([tf.identity(values) * first])[0]

    # One more number, since an empty all-reduce would not wait for the others.
    numbers = tf.constant([0.0, *table.ravel()], tf.float64)
    sums = tf.function(strategy.run)(add_on_replica, [numbers])
    sums = strategy.experimental_local_results(sums)[0].numpy()[1:]
    return np.reshape(sums, table.shape)


def broadcast_from_chief(
    strategy: tf.distribute.Strategy, values: Mapping[str, float]
) -> dict[str, float]:
    """Returns the chief's numbers, by the same names, on all workers."""
    if not is_multiworker(strategy):
        return dict(values)
    chief = gather_from_workers(strategy, [float(value) for value in values.values()])[0]
    return dict(zip(values, chief.tolist(), strict=True))


def check_equal(strategy: tf.distribute.Strategy, what: str, value: str) -> None:
    """Checks that a value is the same on all workers; `what` is its name, a plural."""
    if not is_multiworker(strategy):
        return
    cluster = joined_cluster()
    digest = int.from_bytes(hashlib.sha256(value.encode()).digest()[:6], "big")  # exact in float64
    digests = gather_from_workers(strategy, [digest])[:, 0]
    others = [cluster.name(i) for i, one in enumerate(digests) if one != digests[0]]
    if others:
        raise ValueError(
            f"The {what} of {' and '.join(others)} differ from those of {cluster.name(0)}: start "
            "all workers with the same options and the same files."
        )


# Lost workers.


class WorkerLostError(ValueError):
    """Another worker no longer responds."""


class WorkerWatch:
    """Ends the steps of this worker when another worker is lost.

    If a worker dies, TensorFlow ends the others; but if the chief dies, they wait for it forever,
    inside a step that Python cannot interrupt. This context aborts the step, so that `fit` raises;
    if the process has not ended after a while, it kills the process.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._over = threading.Event()
        self._message: str | None = None

    def __enter__(self) -> "WorkerWatch":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        if isinstance(error, tf.errors.OpError) and not self._message:
            # TensorFlow was faster, but its error does not name the worker.
            self._set_message(self._find_missing())
        self._over.set()
        if self._message and isinstance(error, (tf.errors.OpError, RuntimeError)):
            raise WorkerLostError(self._message) from None

    def _watch(self):
        misses = 0
        while not self._over.wait(CHECK_SECONDS):
            missing = self.cluster.find_missing()
            misses = misses + 1 if missing else 0
            if misses == MAX_MISSES:
                self._set_message(missing)
                eager_context.context().abort_collective_ops(tf.errors.UNAVAILABLE, self._message)
                if not self._over.wait(GRACE_SECONDS):
                    print(self._message, file=sys.stderr, flush=True)
                    os._exit(1)

    def _find_missing(self):
        """Returns the workers that do not respond, after one or more checks."""
        end = time.monotonic() + MAX_MISSES * CHECK_SECONDS
        while not (missing := self.cluster.find_missing()) and time.monotonic() < end:
            time.sleep(0.5)
        return missing

    def _set_message(self, missing):
        if missing:
            self._message = (
                f"Lost {' and '.join(missing)}, so this worker, "
                f"{self.cluster.name(self.cluster.index)}, ends too: start all workers again, with "
                "--resume to continue from the last checkpoint."
            )
