"""Saves everything that a training depends on, and goes on from there bit for bit."""

import copy
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.runs.callback_state import get_states, set_states
from keras_transformer.runs.resume_points import ResumePoints
from keras_transformer.runs.variables import read_variables, write_variables
from keras_transformer.runs.worker_metrics import of_all_workers, of_this_worker
from keras_transformer.training import divergence
from keras_transformer.training.distribution import check_equal, is_chief, is_multiworker
from keras_transformer.training.keras_workarounds import build_ahead, set_initial_epoch
from keras_transformer.typing import Path
from keras_transformer.wording import counted


class ResumeTraining(keras.callbacks.Callback):
    """Lets a training that is killed at any moment go on as if nothing had happened.

    The script is run again as it is: `fit` then begins where the last point was saved, also within
    an epoch, and comes to the same weights bit for bit (on CPU, with as many cores) and to the same
    logs of each epoch as without the stop. In the epoch that goes on, the updates that are done are
    passed over: callbacks see them once more, with the logs that the last of them had.

    Saved are the model's variables, the states of its random generators among them; the
    optimizer's, with schedule, moments and running mean; metrics of the epoch under way; epoch,
    update and the position of the dataset. Not saved: the global generators of `tf.random` and
    `keras.random`, which Keras' layers do not draw from, and what callbacks keep, unless they are
    named.

    A training that diverges is stopped, as `StopOnDivergence` does it, before anything of it is
    saved: run again with a smaller learning rate, the script goes on from the last good point.

    Two points are kept, each with a checksum: where the last one is damaged, stderr says so, and
    training goes on from the one before it.

    Args:
        path: Directory for the points, of this training alone; it is made if need be.
        dataset: What `make_dataset` has returned; `fit` takes it, or what is made of it batch by
            batch, such as `dataset.take(…)`.
        every: Updates from one point to the next. By default so many that saving takes at most 2 %
            of the time. The end of `fit` is always one; with a number, the end of each epoch too.
            Of several workers the chief saves, without a number at the ends of epochs alone.
        callbacks: Others that go on too. What those return from a method `get_state`, which JSON
            must be able to hold, their `set_state` is given; of others, such as Keras'
            `EarlyStopping`, the numbers and lists of arrays among their attributes. In the list
            that `fit` is given, this one stands behind them.

    Raises:
        ValueError: If the dataset has no position, another process trains into the directory, no
            point is whole, or the points are of another model, optimizer, strategy or dataset.
        FloatingPointError: From `fit`, if the training diverges.

    Example:

    >>> resume = ResumeTraining("points", dataset, every=500)
    >>> model.fit(dataset, epochs=10, shuffle=False, callbacks=[resume])
    """

    SHARE = 0.02  # of the time, that saving may take
    FIRST = 30.0  # seconds until the first point, when it is not known yet how long saving takes
    EVERY_EPOCH = False  # whether the end of each epoch is a point, whatever that takes
    # What is said of a training that has diverged, and where there is a point from before.
    REMEDY, RESUMES = divergence.REMEDY, "it resumes from"

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
        self.accept_changes = False  # whether the dataset may be another than was learned from
        self.points = ResumePoints(path, owned)
        self.epoch = 0  # number of whole epochs
        self.update = 0  # updates done of the epoch under way
        self.passed = 0  # of these, updates done before this process began
        self.ended = False  # whether there is nothing left to do, whatever the number of epochs
        self._position = dataset.stream.position  # of the next batch to learn from
        self._updates = 0  # of all epochs
        self._found: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._opened = self._restored = False
        self._metrics: dict[str, np.ndarray] | None = None
        self._logs: dict[str, Any] = {}
        self._learn: Any = None
        self._exit: int | None = None
        self._several = False  # workers
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
        if self._found is not None:
            state = self._found[0]
            self.epoch, self.update, self.ended = (state[x] for x in ("epoch", "update", "ended"))
            self.set_state(copy.deepcopy(state["more"]))  # the point stays what it was
        return self._found is not None

    def close(self) -> None:
        """Lets others train into the directory; the end of `fit` does so by itself."""
        self.points.release()
        self._opened = self._restored = False

    def set_model(self, model: keras.Model) -> None:
        """Takes the model; Keras gives it to one callback after the other."""
        super().set_model(model)
        if any(callback.model is not model for callback in self.callbacks):
            raise ValueError(
                "ResumeTraining must stand behind the callbacks that it saves, in the list that "
                "fit is given: else it would save them before they have seen the end of an epoch."
            )

    def restore(self) -> None:
        """Restores everything but the metrics, which Keras is going to reset.

        Nothing is written before this has succeeded; `fit` does it by itself where it was not done.

        Raises:
            ValueError: If training cannot go on from the point.
        """
        try:
            self._several = is_multiworker(self.model.distribute_strategy)
            self.points.writes = is_chief(self.model.distribute_strategy)
            if not self._opened:
                self.open()
            self._restore_all()
            if not self.points.points:
                self.points.begin()
            self.points.clean()
        except Exception:
            self.close()
            raise
        self._restored = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Has `fit` begin with the epoch under way."""
        if not self._restored:
            self.restore()
        set_initial_epoch(self.model, self.params["epochs"] if self.ended else self.epoch)
        self._saved = time.monotonic()

    def _restore_all(self):
        found, self._found = self._found, None
        strategy = self.model.distribute_strategy
        check_equal(strategy, "points to go on from", f"{self.epoch} {self.update}")
        try:
            build_ahead(self.model, self.dataset.element_spec)
        except Exception as error:
            # Not every model can be tried with shapes alone: then the first update builds it.
            if found is not None:
                raise ValueError(
                    "The model cannot be built from the shapes of the dataset, for what was saved "
                    "to be put into it: call it on a batch before fit."
                ) from error
        if found is None:
            return
        state, arrays = found[0], of_this_worker(strategy, found[1])
        self._position, self._updates = self._place(state), state["updates"]
        write_variables(self.model, arrays, False, str(self.path))
        set_states(self.callbacks, state["callbacks"], arrays)
        self._metrics, self._logs = arrays, state["logs"]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics, and has the updates that are done passed over."""
        set_initial_epoch(
            self.model, 0
        )  # it has been heeded; the next `fit` begins where it is told to
        if epoch != self.epoch:
            self.epoch, self.update = epoch, 0
        if self.update and self._metrics is not None:
            write_variables(self.model, self._metrics, True, str(self.path))
            self._learn, logs = self.model.train_function, self._logs
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
        done, stream = batch + 1, self.dataset.stream
        if not stream.repeat:
            done = min(done, stream.batches_per_pass)  # what steps_per_execution may exceed
        if done <= self.passed:
            return
        count, before = done - self.update, self._updates
        if divergence.has_diverged(logs):
            self._stop(divergence.of_step(done, self.epoch + 1), count)
        self.update, self._updates, self._logs = done, before + count, dict(logs or {})
        self._position = stream.after(self._position, count)
        # A worker that is told to end cannot have the others save with it.
        if self._is_due(before) or (self._exit is not None and not self._several):
            self.save()
        self._leave()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Has `evaluate` find all as it should be where every update was passed over."""
        self._stop_passing()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops where the validation loss is not finite."""
        if divergence.has_diverged(logs):
            self._stop(divergence.of_validation(self.epoch + 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the end of an epoch."""
        self._stop_passing()
        self.epoch, self.update, self.passed, self._logs = epoch + 1, 0, 0, {}
        self.ended = bool(self.model.stop_training)
        due = self.EVERY_EPOCH, self.every is not None, self._several, self._exit is not None
        last = self.ended or self.epoch == self.params["epochs"]
        if any(due) or last or self._is_due(self._updates):
            self.save()
        self._leave()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Lets others train into the directory."""
        set_initial_epoch(self.model, 0)
        self.dataset.stream.position = self._position
        self.close()

    # --- saving ---

    def save(self) -> None:
        """Saves a point.

        Raises:
            ValueError: If it cannot be written; the points from before are whole then.
        """
        begun = time.monotonic()
        self.check_weights()
        arrays = of_all_workers(self.model.distribute_strategy, read_variables(self.model))
        states, more = get_states(self.callbacks)
        state = {
            "epoch": self.epoch,
            "update": self.update,
            "updates": self._updates,
            "applied": self._applied(),
            "position": self._position,
            "batches_per_pass": self.dataset.stream.batches_per_pass,
            "ended": self.ended,
            "logs": self._logs,
            "callbacks": states,
            "more": self.get_state(),
        }
        name = f"{self.epoch:06}-{self.update:08}"
        self.points.write(name, state, arrays | more, self.get_files())
        self._saved = time.monotonic()
        self._seconds = self._saved - begun

    def check_weights(self) -> None:
        """Stops where weights are not finite: they are not saved."""
        if not divergence.all_finite(self.model):
            self._stop(f"a weight after step {self.update:,} of epoch {self.epoch + 1:,}")

    def _stop(self, what, count=0):
        """Stops a training that has diverged in the last `count` updates, or after them.

        No point of what these began with is kept: it would diverge again at any learning rate.
        """
        scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
        begun = self._applied() - (0 if scaled else count)  # those that diverge are skipped
        remedy = self.REMEDY
        self.points.drop(begun)
        if self.points.points and self.points.writes:
            state = self.points.points[-1]["state"]
            at = f"step {state['update']:,} of epoch {state['epoch'] + 1:,}"
            if not state["update"]:
                at = f"the end of epoch {state['epoch']:,}"
            remedy += f"; {self.RESUMES} {at}"
        self.close()
        divergence.stop(self.model, what, remedy)

    def _applied(self):
        """Updates of the weights, without those that a loss scale has had skipped."""
        optimizer = self.model.optimizer
        return int(optimizer.iterations.numpy()) if optimizer else self._updates

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
        return not self._several and time.monotonic() - self._saved >= pause

    def _stop_passing(self):
        if self._learn is not None:
            self.model.train_function, self._learn = self._learn, None

    def _place(self, state):
        """The position that was saved, in a dataset that is the one that was learned from."""
        stream, (number, index) = self.dataset.stream, state["position"]
        here, there = stream.batches_per_pass, state["batches_per_pass"]
        if here != there and not self.accept_changes:
            raise ValueError(
                f"{self.path} was saved by a training with {counted(there, 'batch', 'batches')} in "
                "a pass, "
                f"this dataset has {here}: go on with the same text, tokenizers and options."
            )
        return number, min(index, stream.batches_in(number))
