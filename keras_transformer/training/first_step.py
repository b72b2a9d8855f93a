"""Mends how Keras builds what a first step needs: the one file that knows of it."""

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_transformer.kernels.tensorflow import outside_of_traces
from keras_transformer.training.gradients import sum_over_replicas
from keras_transformer.training.token_weights import explain_failure
from keras_transformer.typing import Nested

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class FirstStep(Model):
    """Mixed into a `keras.Model` ahead of it, for `fit` and `evaluate`, with replicas or without.

    To build what is not built yet, Keras 3.15 averages the first batch over the replicas
    (`Model._maybe_symbolic_build`), though only shapes and dtypes are looked at. That fails where
    replicas have different numbers of rows, as with every odd batch on two, and for integers.
    Here it is shown what the first replica has of that batch.

    Without a strategy Keras leaves the building to the first step, and TensorFlow traces a
    function twice that makes variables. Built ahead, from the shapes of the dataset, the first
    update of a large model comes after little more than half the time.

    Labels that turn out to be wrong while a graph runs raise the `ValueError` of those that were
    wrong before (`token_weights.explain_failure`).

    What a step returns, Keras averages over the replicas: means of means, and sums divided. Over
    workers it fails at scalars (`reduce_per_replica`, by axis 0). Here every replica returns what
    the metrics of all of them come to.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Nested:
        if tf.inside_function():
            self._build_before_tracing(super().__call__, args, kwargs)
        return super().__call__(*args, **kwargs)

    def _build_before_tracing(self, call, args, kwargs):
        """Builds every layer by a trial with shapes alone.

        The variables that a trace makes are lost where it fails, though their layers stay built.
        """
        from keras.src import backend

        if backend.in_stateless_scope() or all(layer.built for layer in self._flatten_layers()):
            return
        # What the trial raises, the trace will raise as well.
        with contextlib.suppress(Exception), outside_of_traces():
            backend.compute_output_spec(call, *args, **kwargs)

    def _make_function(self, step_function):
        function = self._make_step(step_function)

        def explained(iterator):
            try:
                return function(iterator)
            except tf.errors.InvalidArgumentError as error:
                sentence = explain_failure(error.message)
                if sentence is None:
                    raise
            raise ValueError(sentence)

        return explained

    def _make_step(self, step_function):
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return super()._make_function(step_function)
        # What Keras takes the mean of over workers must have an axis to take it over.
        over_workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)

        def step(data):
            logs = step_function(data)
            if isinstance(logs, dict):
                logs |= {
                    name: x for name, x in _of_all_replicas(self.metrics).items() if name in logs
                }
            if not over_workers:
                return logs
            return tf.nest.map_structure(lambda x: tf.convert_to_tensor(x)[tf.newaxis], logs)

        return super()._make_function(step)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync == 1:
            return self._build_ahead(iterator, data_batch)
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = _first_of_replicas(strategy, next(batches))
                break
        super()._maybe_symbolic_build(data_batch=data_batch)

    def _build_ahead(self, iterator, data_batch):
        if data_batch is None:
            data_batch = iterator._get_iterator().element_spec
        # Not every model can be tried with shapes alone. Then the first trace builds, as it does
        # for Keras, or says better what is wrong.
        with contextlib.suppress(Exception):
            build_ahead(self, data_batch)


def _of_all_replicas(metrics):
    """The results of metrics by name, from what all replicas have added up."""
    variables = [variable for metric in metrics for variable in metric.variables]
    if not variables:
        return {}
    sums = sum_over_replicas([tf.identity(variable) for variable in variables])
    results = {}
    for metric in metrics:
        count = len(metric.variables)
        result = metric.stateless_result(sums[:count])
        sums = sums[count:]
        results |= result if isinstance(result, dict) else {metric.name: result}
    return results


def build_ahead(model: Model, data_batch: Nested) -> None:
    """Builds all that a compiled model's first step would: layers, optimizer, loss and metrics.

    Args:
        model: Any `keras.Model`.
        data_batch: A batch as `fit` takes it, or its `element_spec`.
    """
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=data_batch)


def release_graphs(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Has an optimizer sum gradients by `sum_over_replicas`, which keeps no graph in memory.

    Keras sums them by `ReplicaContext.all_reduce`, also where there is one replica.

    Args:
        optimizer: Of a compiled model; None where it was compiled without.
    """

    def all_reduce(grads_and_vars):
        pairs = list(grads_and_vars)
        sums = iter(sum_over_replicas([grad for grad, _ in pairs if grad is not None]))
        return [(grad if grad is None else next(sums), variable) for grad, variable in pairs]

    while optimizer is not None:
        optimizer._all_reduce_sum_gradients = all_reduce
        optimizer = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer


def begin_at(model: Model, epoch: int) -> None:
    """Lets `fit`, which calls `on_train_begin`, begin with an epoch, whatever it was told.

    As Keras' own `BackupAndRestore` does it. 0 leaves it to the argument of `fit`.
    """
    model._initial_epoch = epoch


def _first_of_replicas(strategy, batch):
    """Takes what the first replica has of a distributed batch, in the same structure."""
    return strategy.experimental_local_results(batch)[0]
