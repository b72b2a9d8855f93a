"""What the workers of a MultiWorkerMirroredStrategy do together: share batches, agree, watch."""

import contextlib
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import PAD
from keras_transformer.training.cluster import joined_cluster, read_cluster
from keras_transformer.training.gradients import sum_over_replicas
from keras_transformer.training.worker_watch import WorkerWatch
from keras_transformer.typing import Nested, Tensor

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class SharedFit(Model):
    """Mixed into a `keras.Model` ahead of it: `fit` and `evaluate` over workers take our datasets.

    A `tf.data.Dataset` would be cut by the number of workers, whatever rows they have read already.
    What `make_dataset` returns knows its batches: each worker reads its rows of every one of them,
    and an empty share is a row of padding. Workers that are gone end `fit` on all others.
    """

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does, which has the arguments.

        Raises:
            WorkerGone: If another worker does not answer any more.
        """
        strategy = self.distribute_strategy
        if not is_multiworker(strategy):
            return super().fit(x, *args, **kwargs)
        if kwargs.get("validation_data") is not None:
            kwargs["validation_data"] = shared(strategy, kwargs["validation_data"])
        with watched(strategy):
            history = super().fit(shared(strategy, x), *args, **kwargs)
            agree(strategy, {})  # a worker that has ended is gone for the others
            return history

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Scores, as `keras.Model.evaluate` does, which has the arguments."""
        return super().evaluate(shared(self.distribute_strategy, x), *args, **kwargs)


def is_multiworker(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether a strategy joins several processes."""
    resolver = getattr(strategy, "cluster_resolver", None)
    kind = tf.distribute.MultiWorkerMirroredStrategy
    return isinstance(strategy, kind) and bool(resolver and resolver.cluster_spec().as_dict())


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Tells whether this process is the one that writes; any is that has no others beside it."""
    if not is_multiworker(strategy):
        return True
    cluster = read_cluster()
    return cluster is None or cluster.is_chief


def watched(strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager[Any]:
    """A context in which a worker that is gone ends this one too."""
    cluster = read_cluster() if is_multiworker(strategy) else None
    return WorkerWatch(cluster) if cluster else contextlib.nullcontext()


def shared(strategy: tf.distribute.Strategy, dataset: Any) -> Any:
    """Has each worker read its rows of a dataset's batches.

    Args:
        strategy: Of the model.
        dataset: What `make_dataset` has returned. Anything else is returned as it is.

    Returns:
        A `tf.distribute.DistributedDataset`; without workers, `dataset`.
    """
    stream = getattr(dataset, "stream", None)
    if stream is None or not is_multiworker(strategy):
        return dataset

    def of_worker(context):
        stream.shard = context.input_pipeline_id, context.num_input_pipelines
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        return dataset if replicas == 1 else of_replicas(dataset, replicas)

    return strategy.distribute_datasets_from_function(of_worker)


def of_replicas(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Cuts each batch into as many as a worker has replicas, which take one after the other.

    Args:
        dataset: Of nested ids `(B, …)`.
        count: Number of replicas.

    Returns:
        `tf.data.Dataset` with the rows i, i + count … of each batch; where there are none, a row of
        PAD.
    """

    def cut(*batch):
        def rows(number):
            return tf.nest.map_structure(lambda x: _every(x, number, count), batch)

        return tf.data.Dataset.range(count).map(rows)

    return dataset.flat_map(cut)


def check_equal(strategy: tf.distribute.Strategy, what: str, value: str) -> None:
    """Refuses to go on where workers differ in something; none returns before all are there.

    Args:
        strategy: Of the model.
        what: Name of it, a plural.
        value: This worker's.

    Raises:
        ValueError: On all workers, if that of one is not the chief's.
    """
    if not is_multiworker(strategy):
        return
    cluster = joined_cluster()
    digest = int.from_bytes(hashlib.sha256(value.encode()).digest()[:6], "big")  # exact in float64
    mine = [digest * (index == cluster.index) for index in range(len(cluster.addresses))]
    digests = _sums(strategy, mine)
    others = [cluster.name(i) for i, one in enumerate(digests) if one != digests[0]]
    if others:
        raise ValueError(
            f"The {what} of {' and '.join(others)} are not those of {cluster.name(0)}: start all "
            "workers with the same options, and files of the same content."
        )


def agree(strategy: tf.distribute.Strategy, values: Mapping[str, float]) -> dict[str, float]:
    """What the chief says, on all workers; none returns before all are there.

    Args:
        strategy: Of the model.
        values: Names and numbers. Those of the chief count; the names must be everyone's.

    Returns:
        The chief's numbers by name.
    """
    if not is_multiworker(strategy):
        return dict(values)
    mine = [float(value) if is_chief(strategy) else 0.0 for value in values.values()]
    return dict(zip(values, _sums(strategy, mine), strict=True))


def gather(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """What each worker has, on all of them.

    Args:
        strategy: Of the model, of several workers.
        values: Numbers `(N,)` of this one.

    Returns:
        float64 `(workers, N)`.
    """
    cluster = joined_cluster()
    every = np.zeros([len(cluster.addresses), len(values)])
    every[cluster.index] = values
    return np.reshape(_sums(strategy, every.ravel()), every.shape)


def _sums(strategy, mine):
    """Numbers added up over the workers."""

    @tf.function
    def add_up(values):
        return strategy.run(of_replica, [values])

    def of_replica(values):
        replica = tf.distribute.get_replica_context()
        local = len(strategy.extended.worker_devices)  # replicas of this worker: one counts
        first = tf.cast(replica.replica_id_in_sync_group % local == 0, tf.float64)
        return sum_over_replicas([tf.identity(values) * first])[0]

    # One more, for an empty all-reduce ends none of them.
    sums = add_up(tf.constant([0.0, *mine], tf.float64))
    return strategy.experimental_local_results(sums)[0].numpy()[1:].tolist()


def _every(x: Tensor, number: Tensor, count: int) -> Nested:
    """The rows `number`, `number` + `count` …, or one of PAD."""
    rows = x[number::count]
    nothing = tf.fill(tf.concat([[1], tf.shape(x)[1:]], axis=0), tf.cast(PAD, x.dtype))
    return tf.cond(tf.equal(tf.shape(rows)[0], 0), lambda: nothing, lambda: rows)
