"""Mends what Keras lacks with several replicas: the one file that knows of it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class Replicas(Model):
    """Mixed into a `keras.Model` ahead of it, for `fit` and `evaluate` under a strategy.

    To build what is not built yet, Keras 3.15 averages the first batch over the replicas
    (`Model._maybe_symbolic_build`), though only shapes and dtypes are looked at. That fails where
    replicas have different numbers of rows, as with every odd batch on two, and for integers.
    Here it is shown what the first replica has of that batch.
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self.distribute_strategy
        if iterator is not None and strategy.num_replicas_in_sync > 1:
            for _, _, batches in iterator:
                batch = next(batches)
                data_batch = _first_of_replicas(strategy, batch)
                break
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)


def _first_of_replicas(strategy, batch):
    """Takes what the first replica has of a distributed batch, in the same structure."""
    return strategy.experimental_local_results(batch)[0]
