"""Ends a training on all workers when one of them is gone."""

import os
import sys
import threading
import time
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from keras_transformer.training.cluster import Cluster

EVERY = 3.0  # seconds between two looks at the other workers
MISSES = 3  # looks in a row at which a worker must not answer to be taken for gone
GRACE = 20.0  # seconds for Python to end by itself, once it was told to
LONGEST = (EVERY + 2.0) * MISSES + GRACE  # seconds until every other process has ended


class WorkerGone(ValueError):
    """Another worker does not answer any more."""


class WorkerWatch:
    """Looks after the other workers while a training runs.

    TensorFlow ends the others when a worker dies that is not the chief; when the chief dies, they
    wait for it for ever, inside a step that Python cannot interrupt. Here the steps of all are
    ended, so that `fit` raises; a process that has not ended after a while is ended hard.

    Args:
        cluster: `Cluster`.

    Raises:
        WorkerGone: On leaving the context, instead of TensorFlow's error, if one is gone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._over = threading.Event()
        self._sentence: str | None = None

    def __enter__(self) -> "WorkerWatch":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, *_: object) -> None:
        if isinstance(error, tf.errors.OpError) and not self._sentence:
            # TensorFlow was faster: its error says less.
            self._report(self._gone())
        self._over.set()
        if self._sentence and isinstance(error, (tf.errors.OpError, RuntimeError)):
            raise WorkerGone(self._sentence) from None

    def _watch(self):
        misses = 0
        while not self._over.wait(EVERY):
            missing = self.cluster.missing()
            misses = misses + 1 if missing else 0
            if misses == MISSES:
                self._report(missing)
                context.context().abort_collective_ops(tf.errors.UNAVAILABLE, self._sentence)
                if not self._over.wait(GRACE):
                    print(self._sentence, file=sys.stderr, flush=True)
                    os._exit(1)

    def _gone(self):
        """Who does not answer, after a look or two more."""
        end = time.monotonic() + MISSES * EVERY
        while not (missing := self.cluster.missing()) and time.monotonic() < end:
            time.sleep(0.5)
        return missing

    def _report(self, missing):
        if missing:
            self._sentence = (
                f"{' and '.join(missing)} is gone, so this worker, "
                f"{self.cluster.name(self.cluster.index)}, ends too: start all of them again; "
                "what was saved is there to go on from (--resume)."
            )
