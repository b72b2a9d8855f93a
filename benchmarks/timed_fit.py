"""Keras' `fit`, for the benchmark."""

import functools
import time

import keras


class TimedFit(keras.callbacks.Callback):
    """A call of `fit`; its `seconds` are those from the first batch to `on_train_end`.

    Keras ends some calls, also those of a plain model, with a stall of up to half a second after
    `on_train_end`. `worker` reads `seconds`, if a system has it.

    Args:
        model: A compiled model.
        dataset: What it is trained on.
        result: What a call returns.
        **options: Other arguments of `fit`.
    """

    def __init__(self, model, dataset, result=None, **options):
        super().__init__()
        options |= dict(shuffle=False, verbose=0, callbacks=[self])
        self._fit, self._result = functools.partial(model.fit, dataset, **options), result

    def __call__(self):
        self._fit()
        return self._result

    def on_train_begin(self, logs=None):
        self._started = None

    def on_train_batch_begin(self, batch, logs=None):
        self._started = self._started or time.perf_counter()

    def on_train_end(self, logs=None):
        self.seconds = time.perf_counter() - self._started
