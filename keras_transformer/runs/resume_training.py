"""Saves everything that a training depends on, and resumes it bit for bit; also at signals."""

import contextlib
import copy
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.runs.checkpoints import Checkpoints
from keras_transformer.runs.training_state import (
    gather_metrics,
    get_states,
    read_variables,
    scatter_metrics,
    set_states,
    write_variables,
)
from keras_transformer.training import divergence
from keras_transformer.training.distribution import check_equal, is_chief, is_multiworker
from keras_transformer.training.keras_workarounds import build_ahead, set_initial_epoch
from keras_transformer.utils import Path, counted

# SIGHUP, which Windows does not have, comes when a terminal or an ssh connection is gone.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class ResumeTraining(keras.callbacks.Callback):
    """Resumes a training that was killed at any moment as if nothing had happened.

    The script is run again as it is: `fit` then begins at the last checkpoint, also within an
    epoch, and comes to the same weights bit for bit (on CPU, with as many cores) and to the same
    logs of each epoch as without the stop. In an epoch that is resumed, the steps that are done are
    passed over: callbacks see them once more, with the logs that the last of them had.

    Saved are the model's variables, the states of its random generators among them; the
    optimizer's, with schedule, moments and moving average of the weights; metrics of the epoch
    under way; epoch, step and the position of the dataset. Not saved: the global generators of
    `tf.random` and `keras.random`, which Keras' layers do not draw from, and the states of
    callbacks, unless they are named.

    A training that diverges is stopped, as `StopOnDivergence` does it, before anything of it is
    saved: run again with a smaller learning rate, the script resumes from the last good checkpoint.

    Two checkpoints are kept, each with a checksum: if the last one is damaged, a warning goes to
    stderr, and training resumes from the one before it.

    Args:
        path: Directory for the checkpoints, of this training alone; it is made if need be.
        dataset: The dataset that `make_dataset` has returned; `fit` takes it, or what is made of it
            batch by batch, such as `dataset.take(…)`.
        every: Steps from one checkpoint to the next. By default so many that saving takes at most
            2 % of the time. The end of `fit` is always one; with a number, the end of each epoch
            too. Of several workers the chief saves, without a number at the ends of epochs alone.
        callbacks: Others that are saved too. If they have `get_state`, which returns what JSON can
            hold, their `set_state` is given the same; of others, such as Keras' `EarlyStopping`,
            the numbers and lists of arrays among their attributes are saved. In the list that `fit`
            is given, this one stands behind them.

    Raises:
        ValueError: If the dataset has no position, another process trains into the directory, no
            checkpoint is whole, or they are of another model, optimizer, strategy or dataset.
        FloatingPointError: From `fit`, if the training diverges.

    Example:

    >>> resume = ResumeTraining("points", dataset, every=500)
    >>> model.fit(dataset, epochs=10, shuffle=False, callbacks=[resume])
    """

    SHARE = 0.02  # of the time, that saving may take
    FIRST = 30.0  # seconds until the first checkpoint: how long saving takes is unknown yet
    EVERY_EPOCH = False  # whether the end of each epoch is a checkpoint, however long that takes
    # The advice after a divergence, and the words before the checkpoint to resume from.
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
        self.accept_changes = False  # whether the dataset may have changed
        self.checkpoints = Checkpoints(path, owned)
        self.epoch = 0  # number of whole epochs
        self.step = 0  # steps done of the epoch under way
        self.passed = 0  # of these, steps done before this process began
        self.ended = False  # whether there is nothing left to do, whatever the number of epochs
        self._position = dataset.stream.position  # of the next batch to learn from
        self._steps = 0  # of all epochs
        self._found: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._opened = self._restored = False
        self._metrics: dict[str, np.ndarray] | None = None
        self._logs: dict[str, Any] = {}
        self._train_function: Any = None  # of the model, while steps are passed over
        self._exit: int | None = None
        self._several = False  # workers
        self._seconds: float | None = None  # that saving took

    # --- what a subclass adds ---

    def get_state(self) -> Any:
        """State to be saved beside the variables: for subclasses."""
        return None

    def set_state(self, state: Any) -> None:
        """Takes the state that `get_state` returned when the checkpoint was saved."""

    def get_files(self) -> dict[str, str]:
        """Files in the directory that belong to the checkpoint, with their checksums."""
        return {}

    # --- resuming ---

    def open(self) -> bool:
        """Locks the directory and finds the checkpoint to resume from; `fit` does so by itself.

        Returns:
            Whether there is one.
        """
        self.checkpoints.lock()
        self._found = self.checkpoints.latest()
        self._opened = True
        if self._found is not None:
            state = self._found[0]
            self.epoch, self.step, self.ended = (state[x] for x in ("epoch", "update", "ended"))
            self.set_state(copy.deepcopy(state["more"]))  # the checkpoint stays what it was
        return self._found is not None

    def close(self) -> None:
        """Lets others train into the directory; the end of `fit` does so by itself."""
        self.checkpoints.release()
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
            ValueError: If training cannot resume from the checkpoint.
        """
        strategy = self.model.distribute_strategy
        try:
            self._several = is_multiworker(strategy)
            self.checkpoints.writes = is_chief(strategy)
            if not self._opened:
                self.open()
            check_equal(strategy, "points to go on from", f"{self.epoch} {self.step}")
            self._restore_all(strategy)
            if not self.checkpoints.points:
                self.checkpoints.begin()
            self.checkpoints.clean()
        except Exception:
            self.close()
            raise
        self._restored = True

    def _restore_all(self, strategy):
        found, self._found = self._found, None
        try:
            build_ahead(self.model, self.dataset.element_spec)
        except Exception as error:
            # Not every model can be tried with shapes alone: then the first step builds it.
            if found is not None:
                raise ValueError(
                    "The model cannot be built from the shapes of the dataset, for what was saved "
                    "to be put into it: call it on a batch before fit."
                ) from error
        if found is None:
            return
        state, arrays = found[0], scatter_metrics(strategy, found[1])
        self._position, self._steps = self._place(state), state["updates"]
        write_variables(self.model, arrays, False, str(self.path))
        set_states(self.callbacks, state["callbacks"], arrays)
        self._metrics, self._logs = arrays, state["logs"]

    def _place(self, state):
        """The position that was saved, if the dataset is the one that was learned from."""
        stream, (number, index) = self.dataset.stream, state["position"]
        here, there = stream.batches_per_pass, state["batches_per_pass"]
        if here != there and not self.accept_changes:
            raise ValueError(
                f"{self.path} was saved by a training with {counted(there, 'batch', 'batches')} in "
                f"a pass, this dataset has {here}: go on with the same text, tokenizers and "
                "options."
            )
        return number, min(index, stream.batches_in(number))

    # --- while fit runs ---

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Has `fit` begin with the epoch under way."""
        if not self._restored:
            self.restore()
        set_initial_epoch(self.model, self.params["epochs"] if self.ended else self.epoch)
        self._saved = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics, and has the steps that are done passed over."""
        set_initial_epoch(self.model, 0)  # for the next `fit`
        if epoch != self.epoch:
            self.epoch, self.step = epoch, 0
        if self.step and self._metrics is not None:
            write_variables(self.model, self._metrics, True, str(self.path))
            self._train_function, logs = self.model.train_function, self._logs
            self.model.train_function = lambda _: logs
        self._metrics = None
        self.passed = self.step
        # Whichever iterators were made and dropped, the next one begins here.
        self.dataset.stream.position = self._position

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Learns again when all steps that were done have been passed over."""
        if batch >= self.passed:
            self._stop_passing()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the steps, and saves when it is time to."""
        done, stream = batch + 1, self.dataset.stream
        if not stream.repeat:
            done = min(done, stream.batches_per_pass)  # which steps_per_execution may exceed
        if done <= self.passed:
            return
        count, before = done - self.step, self._steps
        if divergence.has_diverged(logs):
            self._stop(divergence.describe_step(done, self.epoch + 1), count)
        self.step, self._steps, self._logs = done, before + count, dict(logs or {})
        self._position = stream.after(self._position, count)
        # A worker that gets a signal cannot have the others save with it.
        if self._is_due(before) or (self._exit is not None and not self._several):
            self.save()
        self._leave()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Gives the model its own training step back where every step was passed over."""
        self._stop_passing()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops if the validation loss is not finite."""
        if divergence.has_diverged(logs):
            self._stop(divergence.describe_validation(self.epoch + 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the end of an epoch."""
        self._stop_passing()
        self.epoch, self.step, self.passed, self._logs = epoch + 1, 0, 0, {}
        self.ended = bool(self.model.stop_training)
        due = self.EVERY_EPOCH, self.every is not None, self._several, self._exit is not None
        last = self.ended or self.epoch == self.params["epochs"]
        if any(due) or last or self._is_due(self._steps):
            self.save()
        self._leave()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Lets others train into the directory."""
        set_initial_epoch(self.model, 0)
        self.dataset.stream.position = self._position
        self.close()

    def _stop_passing(self):
        if self._train_function is not None:
            self.model.train_function, self._train_function = self._train_function, None

    # --- saving ---

    def save(self) -> None:
        """Saves a checkpoint.

        Raises:
            ValueError: If it cannot be written; the checkpoints from before are whole then.
        """
        begun = time.monotonic()
        self.check_weights()
        arrays = gather_metrics(self.model.distribute_strategy, read_variables(self.model))
        states, more = get_states(self.callbacks)
        state = {
            "epoch": self.epoch,
            "update": self.step,
            "updates": self._steps,
            "applied": self._applied(),
            "position": self._position,
            "batches_per_pass": self.dataset.stream.batches_per_pass,
            "ended": self.ended,
            "logs": self._logs,
            "callbacks": states,
            "more": self.get_state(),
        }
        name = f"{self.epoch:06}-{self.step:08}"
        self.checkpoints.write(name, state, arrays | more, self.get_files())
        self._saved = time.monotonic()
        self._seconds = self._saved - begun

    def _is_due(self, before):
        """Whether a checkpoint should be saved now, after so many steps before the last ones."""
        if self.every is not None:
            return self._steps // self.every > before // self.every
        pause = self.FIRST if self._seconds is None else self._seconds / self.SHARE
        return not self._several and time.monotonic() - self._saved >= pause

    # --- stopping ---

    def check_weights(self) -> None:
        """Stops where weights are not finite: they are not saved."""
        if not divergence.all_finite(self.model):
            self._stop(f"a weight after step {self.step:,} of epoch {self.epoch + 1:,}")

    def _stop(self, what, count=0):
        """Stops a training that has diverged in the last `count` steps, or after them.

        No checkpoint of the weights before these steps is kept: it would diverge again at any
        learning rate.
        """
        scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
        begun = self._applied() - (0 if scaled else count)  # those that diverge are skipped
        remedy = self.REMEDY
        self.checkpoints.drop(begun)
        if self.checkpoints.points and self.checkpoints.writes:
            state = self.checkpoints.points[-1]["state"]
            at = f"step {state['update']:,} of epoch {state['epoch'] + 1:,}"
            if not state["update"]:
                at = f"the end of epoch {state['epoch']:,}"
            remedy += f"; {self.RESUMES} {at}"
        self.close()
        divergence.stop(self.model, what, remedy)

    def _applied(self):
        """Steps that changed the weights, without those that a loss scale has had skipped."""
        optimizer = self.model.optimizer
        return int(optimizer.iterations.numpy()) if optimizer else self._steps

    def stop(self, status: int) -> None:
        """Has the training save a checkpoint and leave by `SystemExit`, after the current step.

        While it is validating, after that, and the epoch's end is the checkpoint.

        Args:
            status: Exit status.
        """
        self._exit = status

    def _leave(self):
        if self._exit is not None:
            raise SystemExit(self._exit)


@contextlib.contextmanager
def saved_by_signals(training: ResumeTraining) -> Iterator[None]:
    """Has SIGINT, SIGTERM and SIGHUP save a training and end the process, with 128 + their number.

    After the current step; while it is validating, after that. A second signal ends the process at
    once, and the training resumes from the last checkpoint; but for a SIGHUP, which may come twice,
    from the shell and from the system. A SIGHUP that is ignored, as by `nohup`, stays ignored.
    Handlers are set in the main thread only: Python has none in others.

    Args:
        training: The callback that saves it.
    """
    received: list[int] = []
    hangup = getattr(signal, "SIGHUP", None)

    def end(number, _):
        status = 128 + number
        if received and number != hangup:
            os._exit(status)
        if received:
            return
        received.append(status)
        training.stop(status)
        # Not by print, which a signal must not enter twice.
        text = (
            f"keras-transformer: {signal.Signals(number).name}: the training is saved and ends; "
            "--resume goes on with it (another signal ends it at once)\n"
        )
        with contextlib.suppress(OSError):  # a terminal that is gone
            os.write(sys.stderr.fileno(), text.encode())

    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = {getattr(signal, name) for name in SIGNALS if hasattr(signal, name)}
        if hangup and signal.getsignal(hangup) == signal.SIG_IGN:
            numbers.remove(hangup)
        before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
        if received:  # at the very end, when everything had been saved
            raise SystemExit(received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
