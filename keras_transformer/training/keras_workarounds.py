"""Everything that relies on private members of Keras and TensorFlow, and why it is needed.

Where possible, `tests/training/test_keras_workarounds.py` has a test that fails once a workaround
is no longer needed. `TokenTrainer` and `Transformer` call these functions.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.training.labels import explain_failure, sum_dtype
from keras_transformer.utils import Config, Nested, Tensor

if IS_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.kernels.tensorflow import outside_of_traces


# Building.


def make_functional(model: keras.Model, base: type, args: tuple[Any, ...], kwargs: Config) -> None:
    """Makes the class of a functional model, `Mine(inputs, outputs)`, a subclass of `Functional`.

    Keras would make `Functional` the base of every class between `Mine` and `keras.Model`, and so
    of all subclasses of `base`: after one functional model, no other model could be created.

    Args:
        model: A model that is about to be initialized.
        base: `TokenTrainer`.
        args, kwargs: Its arguments.
    """
    named = {"inputs", "outputs"} & kwargs.keys()
    if len(args) + len(named) != 2:
        return
    from keras.src.models.functional import Functional

    kind = type(model)
    if kind is base:
        name = base.__name__
        raise TypeError(
            f"A functional model cannot be a {name} itself: create a subclass, such as "
            f"class FunctionalModel({name}): pass."
        )
    if not issubclass(kind, Functional):
        kind.__bases__ = (*(b for b in kind.__bases__ if b is not keras.Model), Functional)


def build_before_tracing(
    model: keras.Model, call: Callable[..., Nested], *args: Any, **kwargs: Any
) -> None:
    """Builds every layer with shapes alone, before a `tf.function` traces the model's first call.

    If a trace fails, the variables that it created are lost, but their layers stay built.

    Args:
        model: A model that is about to be called inside a `tf.function`.
        call: The call, and its arguments.
    """
    from keras.src import backend

    if backend.in_stateless_scope() or all(layer.built for layer in model._flatten_layers()):
        return
    # Whatever this raises, the trace will raise as well.
    with contextlib.suppress(Exception), outside_of_traces():
        backend.compute_output_spec(call, *args, **kwargs)


def maybe_symbolic_build(
    model: keras.Model, iterator: Any = None, data_batch: Nested = None
) -> None:
    """Builds what `fit` or `evaluate` needs: replaces `Model._maybe_symbolic_build`.

    Under a strategy, Keras 3.15 averages the first batch over the replicas, although it looks at
    shapes and dtypes only. That fails for integers, and for replicas with different numbers of
    rows, such as an odd batch on two replicas. Here Keras sees the rows of the first replica.

    Without a strategy Keras leaves building to the first step, and TensorFlow traces a function
    that creates variables twice. Building ahead halves the time to the first step of a large model.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync > 1:
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = strategy.experimental_local_results(next(batches))[0]
                break
        keras.Model._maybe_symbolic_build(model, data_batch=data_batch)
        return
    if data_batch is None:
        data_batch = iterator._get_iterator().element_spec
    # Not every model can be called with shapes alone. Then the first trace builds it, as Keras
    # does, or raises a better error.
    with contextlib.suppress(Exception):
        build_ahead(model, data_batch)


def build_ahead(model: keras.Model, data_batch: Nested) -> None:
    """Builds layers, optimizer, loss and metrics of a compiled model, as its first step would.

    Args:
        model: Any `keras.Model`.
        data_batch: A batch for `fit`, or its `element_spec`.
    """
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=data_batch)


# Steps on replicas.


def make_function(model: keras.Model, step: Callable[[Nested], Nested]) -> Callable[..., Nested]:
    """Compiles a training or test step: replaces `Model._make_function`.

    Keras averages what a step returns over the replicas: means of means, and divided sums. Over
    workers it fails at scalars (`reduce_per_replica` concatenates along axis 0). Here each replica
    returns the metrics of all replicas.

    A compiled step with invalid labels raises the `ValueError` of `labels.explain_failure`.
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
        raise ValueError(reason)

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

    Args:
        tensors: The tensors of this replica.

    Returns:
        The sums, in the same order.
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

    Args:
        optimizer: The optimizer of a compiled model, or None.
    """

    def all_reduce(grads_and_vars):
        pairs = list(grads_and_vars)
        sums = iter(sum_over_replicas([grad for grad, _ in pairs if grad is not None]))
        return [(grad if grad is None else next(sums), variable) for grad, variable in pairs]

    while optimizer is not None:
        optimizer._all_reduce_sum_gradients = all_reduce
        optimizer = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer


# Settings without an argument in Keras.


def set_initial_epoch(model: keras.Model, epoch: int) -> None:
    """Sets `initial_epoch` of a running `fit`, in `on_train_begin`; 0 keeps `fit`'s argument.

    Keras' own `BackupAndRestore` sets the same attribute.
    """
    model._initial_epoch = epoch


@contextlib.contextmanager
def wide_sums() -> Iterator[None]:
    """A context in which Keras creates the metric of the loss with `sum_dtype`, not with floatx."""
    floatx = keras.config.floatx()
    keras.config.set_floatx(sum_dtype())
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)


# Files.


def check_left_over(model: keras.Model, store: Any) -> None:
    """Checks that a file has no weights of layers that the model lacks; Keras ignores them.

    Args:
        model: The model that loads the file.
        store: The argument of `load_own_variables` of the whole model.
    """
    paths = _find_paths(model)
    groups = {path for path in _find_groups(store) if _is_of_layer(path)}
    if not groups.issuperset(path for path, variables in paths.items() if variables):
        return  # Keras reports what is missing, or the model is a part of another one
    if left_over := sorted(groups - paths.keys()):
        more = f" and {len(left_over) - 5} more" if len(left_over) > 5 else ""
        raise ValueError(
            f"The file has weights that {model.name!r} lacks ({', '.join(left_over[:5])}{more}): "
            "create the model with the same arguments, or load the other weights by "
            "load_weights(…, skip_mismatch=True)."
        )


def _find_paths(model):
    """Returns the paths under which Keras saves layers, with the variables of each."""
    from keras.src.saving import saving_lib

    class Paths(saving_lib.H5IOStore):
        """Takes the place of a file."""

        def __init__(self) -> None:
            super().__init__(io.BytesIO(), mode="w")
            self.made: dict[str, dict[str, Any]] = {}

        def make(self, path, metadata=None):
            return self.made.setdefault(path, {})

    store = Paths()
    saving_lib._save_state(model, store, None, "", set())
    return {path: variables for path, variables in store.made.items() if _is_of_layer(path)}


def _find_groups(store):
    """Returns the paths that have weights in a file."""
    names = list(getattr(store, "sharding_config", {}).get("weight_map", []))
    if not names and hasattr(store, "h5_file"):
        store.h5_file.visit(names.append)
    paths = {f"/{name.strip('/')}/".rpartition("/vars/")[0] for name in names if "vars" in name}
    return {path.strip("/") for path in paths}


def _is_of_layer(path):
    return not {"optimizer", "seed_generator"} & {*path.split("/")}
