"""Saves everything that a training depends on, and goes on from there bit for bit."""

import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.runs.resume_points import ResumePoints
from keras_transformer.runs.variables import METRICS, read_variables, write_variables
from keras_transformer.training.first_step import begin_at, build_ahead
from keras_transformer.typing import Path


class ResumeTraining(keras.callbacks.Callback):
    """Lets a training that is killed at any moment go on as if nothing had happened.

    The script is run again as it is: `fit` then begins where the last point was saved, also within
    an epoch, and comes to the same weights bit for bit (on CPU, with as many cores) and to the same
    logs of each epoch as without the stop. In the epoch that goes on, the updates that are done are
    passed over: callbacks see them once more, with the logs that the last of them had.

    Saved are the model's variables, the states of its random generators among them; the
    optimizer's, with schedule, moments and running mean; metrics of the epoch under way; epoch,
    update and the position of the dataset. Not saved: the state of `tf.random`'s global generator,
    which Keras' layers do not use, and what callbacks keep, unless they are named.

    Two points are kept, each with a checksum: where the last one is damaged, stderr says so, and
    training goes on from the one before it.

    Args:
        path: Directory for the points, of this training alone; it is made if need be.
        dataset: What `make_dataset` has returned; `fit` takes it, or what is made of it batch by
            batch, such as `dataset.take(…)`.
        every: Updates from one point to the next. By default so many that saving takes at most 2 %
            of the time. The end of `fit` is always one; with a number, the end of each epoch too.
        callbacks: Others that go on too. What those return from a method `get_state`, which JSON
            must be able to hold, their `set_state` is given; of others, such as Keras'
            `EarlyStopping`, the numbers, words and lists of arrays among their attributes.

    Raises:
        ValueError: If the dataset has no position, another process trains into the directory, no
            point is whole, or the points are of another model, optimizer, strategy or dataset.

    Example:

    >>> dataset = make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=4096)
    >>> model.fit(dataset, epochs=10, callbacks=[ResumeTraining("points", dataset, every=500)])
    """

    SHARE = 0.02  # of the time, that saving may take
    FIRST = 30.0  # seconds until the first point, when it is not known yet how long saving takes

    def __init__(
        self,
        path: Path,
        dataset: tf.data.Dataset,
        every: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        owned: str | None = None,
    ) -> None:
        super().__init__()
        require_tensorflow("ResumeTraining")
        if not hasattr(dataset, "stream"):
            raise ValueError(
                "ResumeTraining takes the dataset as make_dataset returns it, which knows its "
                "position: what is made of it (take, map, …) goes to fit alone."
            )
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 update, or None, received {every}.")
        self.path = path
        self.dataset = dataset
        self.every = every
        self.callbacks = list(callbacks)
        self.points = ResumePoints(path, owned)
        self.epoch = 0  # number of whole epochs
        self.update = 0  # updates done of the epoch under way
        self.passed = 0  # of these, updates done before this process began
        self._position = dataset.stream.position  # of the next batch to learn from
        self._updates = 0  # of all epochs
        self._found: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._opened = False
        self._metrics: dict[str, np.ndarray] | None = None
        self._states: list[Any] | None = None
        self._logs: dict[str, Any] = {}
        self._learn: Any = None
        self._exit: int | None = None
        self._seconds: float | None = None  # that saving took

    # --- what a subclass adds ---

    def get_state(self) -> Any:
        """What is saved beside the variables: for subclasses."""
        return None

    def set_state(self, state: Any) -> None:
        """Takes what `get_state` returned when the point was saved."""

    def get_files(self) -> dict[str, str]:
        """Files in the directory that belong to the point, with their checksums."""
        return {}

    # --- going on ---

    def open(self) -> bool:
        """Locks the directory and finds the point to go on from; `fit` does so by itself.

        Returns:
            Whether there is one.
        """
        self.points.lock()
        self._found = self.points.latest()
        self._opened = True
        if self._found is None:
            self.points.begin()
        else:
            state = self._found[0]
            self.epoch, self.update = state["epoch"], state["update"]
            self.set_state(state["more"])
        self.points.clean()
        return self._found is not None

    def close(self) -> None:
        """Lets others train into the directory; the end of `fit` does so by itself."""
        self.points.release()
        self._opened = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores everything but what Keras is still going to reset."""
        if not self._opened:
            self.open()
        build_ahead(self.model, self.dataset.element_spec)
        found, self._found = self._found, None
        if found is not None:
            state, arrays = found
            self._check_dataset(state)
            write_variables(self.model, arrays, False, str(self.path))
            self._metrics, self._states, self._logs = arrays, state["callbacks"], state["logs"]
            self._position, self._updates = tuple(state["position"]), state["updates"]
            begin_at(self.model, self.epoch)
        self._saved = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the rest, and has the updates that are done passed over."""
        begin_at(self.model, 0)  # it has been heeded; the next `fit` begins where it is told to
        if epoch != self.epoch:
            self.epoch, self.update = epoch, 0
        if self._states is not None:
            for callback, state in zip(self.callbacks, self._states, strict=True):
                _set_state(callback, state)
            self._states = None
        if self.update and self._metrics is not None:
            write_variables(self.model, self._metrics, True, str(self.path))
            self._learn = self.model.train_function
            logs = self._logs
            self.model.train_function = lambda _: logs
        self._metrics = None
        self.passed = self.update
        # Whichever iterators were made and dropped, the next one begins here.
        self.dataset.stream.position = self._position

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Learns again where all that was done has been passed over."""
        if batch >= self.passed:
            self._stop_passing()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts, and saves where it is time to."""
        done = min(batch + 1, self.params["steps"] or batch + 1)
        if done <= self.passed:
            return
        count, before = done - self.update, self._updates
        self.update, self._updates, self._logs = done, before + count, dict(logs or {})
        self._position = self.dataset.stream.after(self._position, count)
        if self._exit is not None or self._is_due(before):
            self.save()
        self._leave()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Has `evaluate` find all as it should be where every update was passed over."""
        self._stop_passing()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the end of an epoch."""
        self._stop_passing()
        self.epoch, self.update, self.passed, self._logs = epoch + 1, 0, 0, {}
        last = self.epoch == self.params["epochs"] or self.model.stop_training
        if last or self.every is not None or self._exit is not None or self._is_due(self._updates):
            self.save()
        self._leave()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Lets others train into the directory."""
        begin_at(self.model, 0)
        self.dataset.stream.position = self._position
        self.close()

    # --- saving ---

    def save(self) -> None:
        """Saves a point.

        Raises:
            ValueError: If it cannot be written; the points from before are whole then.
        """
        begun = time.monotonic()
        state = {
            "epoch": self.epoch,
            "update": self.update,
            "updates": self._updates,
            "position": self._position,
            "batches_per_pass": self.dataset.stream.batches_per_pass,
            "logs": self._logs,
            "callbacks": [_get_state(callback) for callback in self.callbacks],
            "more": self.get_state(),
        }
        name = f"{self.epoch:06}-{self.update:08}"
        self.points.write(name, state, read_variables(self.model), self.get_files())
        self._saved = time.monotonic()
        self._seconds = self._saved - begun

    def stop(self, status: int) -> None:
        """Has the training save a point and leave by `SystemExit`, after the update under way.

        While it is validating, after that, and the epoch's end is the point.

        Args:
            status: Exit status.
        """
        self._exit = status

    def _leave(self):
        if self._exit is not None:
            raise SystemExit(self._exit)

    def _is_due(self, before):
        """Whether a point should be saved now, after so many updates before the last ones."""
        if self.every is not None:
            return self._updates // self.every > before // self.every
        pause = self.FIRST if self._seconds is None else self._seconds / self.SHARE
        return time.monotonic() - self._saved >= pause

    def _stop_passing(self):
        if self._learn is not None:
            self.model.train_function, self._learn = self._learn, None

    def _check_dataset(self, state):
        """Refuses a dataset that cannot be the one that was learned from."""
        here, there = self.dataset.stream.batches_per_pass, state["batches_per_pass"]
        if here != there:
            raise ValueError(
                f"{self.path} was saved by a training with {there} batches in a pass, this dataset "
                f"has {here}: go on with the same text, tokenizers and options."
            )


_SIMPLE = (bool, int, float, str, type(None), np.number)


def _get_state(callback):
    if hasattr(callback, "get_state"):
        return callback.get_state()
    return {name: value for name, value in vars(callback).items() if isinstance(value, _SIMPLE)}


def _set_state(callback, state):
    if hasattr(callback, "set_state"):
        callback.set_state(state)
    else:
        vars(callback).update(state)
