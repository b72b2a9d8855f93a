"""What relies on private members of Keras and TensorFlow, and why; and checks of weights.

Where possible, `tests/training/test_keras_workarounds.py` has a test that fails once a workaround
is no longer needed. `TokenTrainer` and `Transformer` call these functions.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.training.losses import explain_failure
from keras_transformer.utils import Nested, Tensor

if IS_TENSORFLOW:
    import tensorflow as tf

ALIGNMENT = 64  # bytes, of TensorFlow's tensors: it ends the process at others
REPLACING = threading.RLock()  # of methods: what two threads restore must be the original


# Building.


def maybe_symbolic_build(
    model: keras.Model, iterator: Any = None, data_batch: Nested = None
) -> None:
    """Builds what `fit` or `evaluate` needs, from shapes.

    Without a strategy, Keras leaves building to the first step, and TensorFlow traces a function
    that creates variables twice: this halves the time to the first step of a large model. Under a
    strategy, Keras 3.15 averages the first batch over the replicas, although it needs the shapes
    only. That fails for integers, and for replicas with different numbers of rows.
    """
    if data_batch is None:
        data_batch = tf.nest.map_structure(
            lambda spec: getattr(spec, "_value_specs", [spec])[0],  # of the first replica
            iterator._get_iterator().element_spec,
        )
    several = model.distribute_strategy.num_replicas_in_sync > 1
    # Not every model can be called with shapes alone. Then the first trace builds it, as Keras
    # does, or raises a better error; replicas cannot.
    with contextlib.nullcontext() if several else contextlib.suppress(Exception):
        build_ahead(model, data_batch)


def build_ahead(model: keras.Model, data_batch: Nested) -> None:
    """Builds layers, optimizer, loss and metrics for a batch, or its `element_spec`."""
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=data_batch)


# Loading and saving.


def shared_zeros(shape: Sequence[int]) -> tuple[Tensor, np.ndarray]:
    """Returns float32 zeros as a tensor, and an array with the same memory, to fill it.

    TensorFlow itself would copy an array twice.
    """
    size = math.prod(shape) * np.dtype("float32").itemsize
    buffer = np.zeros(size + ALIGNMENT, "uint8")
    array = buffer[-buffer.ctypes.data % ALIGNMENT :][:size].view("float32").reshape(shape)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__()), array


@contextlib.contextmanager
def building_zeros() -> Iterator[None]:
    """Context in which this thread makes weights of zeros, since their values will be loaded.

    Random values would take three times the memory of the weight, and zeros of NumPy take none.
    """
    thread = threading.get_ident()
    kinds = keras.initializers.RandomNormal, keras.initializers.VarianceScaling

    def replace(call):
        def make(self, shape, dtype=None, **options):
            if threading.get_ident() != thread:
                return call(self, shape, dtype, **options)
            if IS_TENSORFLOW and dtype == "float32":
                return shared_zeros(shape)[0]
            return keras.ops.zeros(shape, dtype)

        return make

    with REPLACING, contextlib.ExitStack() as stack:
        for kind in kinds:
            stack.callback(setattr, kind, "__call__", kind.__call__)
            kind.__call__ = replace(kind.__call__)
        yield


# Steps on replicas.


def make_function(model: keras.Model, step: Callable[[Nested], Nested]) -> Callable[..., Nested]:
    """Compiles a training or test step.

    Keras averages what a step returns over the replicas: means of means, and divided sums. Over
    workers it fails at scalars (`reduce_per_replica` concatenates along axis 0). Here each replica
    returns the metrics of all replicas. Invalid ids and labels raise a `ValueError`.
    """
    if model.distribute_strategy.num_replicas_in_sync > 1:
        step = _add_metrics_of_all_replicas(model, step)
    function = keras.Model._make_function(model, step)

    def run(iterator):
        try:
            return function(iterator)
        except tf.errors.InvalidArgumentError as error:
            reason = explain_failure(error.message)
            if reason is None:
                raise
            raise ValueError(reason) from error

    return run


def _add_metrics_of_all_replicas(model, step):
    multiworker = isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def step_on_replica(data):
        logs = step(data)
        if isinstance(logs, dict):
            results = _compute_metrics_of_all_replicas(model.metrics)
            logs |= {name: x for name, x in results.items() if name in logs}
        if not multiworker:
            return logs
        # Keras concatenates the results of workers, which needs an axis.
        return tf.nest.map_structure(lambda x: tf.convert_to_tensor(x)[tf.newaxis], logs)

    return step_on_replica


def _compute_metrics_of_all_replicas(metrics):
    """Computes metrics, by name, from the sums of their variables over all replicas."""
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


def sum_over_replicas(tensors: list[Tensor]) -> list[Tensor]:
    """Sums tensors over all replicas; the sums are not differentiable.

    `ReplicaContext.all_reduce` has a `tf.custom_gradient`, which TensorFlow registers with each
    graph until the process ends: that keeps the graph and the model's weights in memory
    (tensorflow#97697).
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    add = tf.distribute.ReduceOp.SUM
    if tf.__internal__.distribute.strategy_supports_no_merge_call():  # GPUs and XLA only
        return context.all_reduce(add, tensors)

    def reduce(strategy, *distributed):
        return strategy.extended.batch_reduce_to(add, [(x, x) for x in distributed])

    return list(context.merge_call(reduce, args=tuple(tensors)))


def release_graphs(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Makes an optimizer sum gradients by `sum_over_replicas`, which keeps no graph in memory.

    Keras sums them by `ReplicaContext.all_reduce`, even on one replica.
    """

    def all_reduce(grads_and_vars):
        pairs = list(grads_and_vars)
        sums = iter(sum_over_replicas([grad for grad, _ in pairs if grad is not None]))
        return [(grad if grad is None else next(sums), variable) for grad, variable in pairs]

    while optimizer is not None:
        optimizer._all_reduce_sum_gradients = all_reduce
        optimizer = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer


# Epochs.


def set_initial_epoch(model: keras.Model, epoch: int) -> None:
    """Sets `initial_epoch` of a running `fit`, in `on_train_begin`; 0 keeps `fit`'s argument.

    Keras' own `BackupAndRestore` sets the same attribute.
    """
    model._initial_epoch = epoch


# Weights.


def check_weights(model: keras.Model, name: str) -> None:
    """Checks that all weights of a built model, except `suppressed`, are finite."""
    weights = (weight for weight in model.weights if weight.name != "suppressed")
    invalid = next((weight for weight in weights if not is_finite(weight)), None)
    if invalid is not None:
        raise ValueError(
            f"{name} has weights that are not finite, such as {invalid.path}: its training "
            "diverged. Use an earlier checkpoint, or train again with a smaller learning rate."
        )


def is_finite(variable: keras.Variable) -> bool:
    """Returns whether all numbers of a variable are finite."""
    return bool(np.isfinite(keras.ops.convert_to_numpy(variable)).all())
