"""`ResumeTraining`: saves the complete state of a training, also at signals, and resumes it."""

import contextlib
import copy
import dataclasses
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
from keras_transformer.training.distribution import check_equal, is_chief, is_multiworker
from keras_transformer.training.keras_workarounds import build_ahead, is_finite, set_initial_epoch
from keras_transformer.training.optimizer import (
    REMEDY,
    describe_step,
    describe_validation,
    has_diverged,
    optimizer_of,
    stop_training,
)
from keras_transformer.utils import Path, counted

MAX_SAVE_SHARE = 0.02  # of the time, for saving
FIRST_SAVE_SECONDS = 30.0  # until the first checkpoint, as the time for saving is unknown


@dataclasses.dataclass
class Position:
    """How far a training has come."""

    epoch: int = 0  # completed ones
    step: int = 0  # completed ones of the current epoch
    total_steps: int = 0  # completed ones of all epochs
    batch: tuple[int, int] = (0, 0)  # the next one of the dataset: (pass, index in it)
    ended: bool = False  # whether the training stopped before the last epoch


class ResumeTraining(keras.callbacks.Callback):
    """Resumes a training that was interrupted at any time.

    Run the same script again: `fit` then starts from the last checkpoint, also within an epoch. It
    reaches the same weights bit for bit (on CPU, with the same number of cores) and the same logs
    of each epoch as an uninterrupted training. Callbacks see the completed steps of a resumed epoch
    again, with the logs of the last of them; the model skips these steps.

    A checkpoint contains the variables of the model, including its random generators; those of the
    optimizer, including the moving average of the weights; the metrics of the current epoch; and
    epoch, step and position in the dataset. It does not contain the global generators of
    `tf.random` and `keras.random`, which Keras' layers do not use, nor the states of callbacks that
    are not in `callbacks`.

    A training that diverges is stopped, as with `StopOnDivergence`, before it is saved: run the
    script again with a smaller learning rate to resume from the last good checkpoint. A number that
    the script has changed replaces that of the checkpoint.

    Two checkpoints are kept, each with a checksum. If the last one is corrupted, a warning is
    printed on stderr, and the training resumes from the other one.

    Args:
        path: Directory for the checkpoints of this training only; created if necessary.
        dataset: The dataset that `make_dataset` returned. `fit` receives it, or a dataset with the
            same batches, such as `dataset.take(…)`.
        every: Steps between checkpoints. By default, saving takes at most 2 % of the time. The end
            of `fit` is always a checkpoint; with a number, the end of each epoch too. The chief
            saves for all workers, by default at the end of epochs only.
        callbacks: Other callbacks to save. A callback may have `get_state`, which returns a state
            that JSON can represent, and `set_state`, which restores it; for others, such as Keras'
            `EarlyStopping`, attributes are saved that are numbers or lists of arrays. Put
            `ResumeTraining` after them in the list of callbacks for `fit`.
        every_epoch: Whether the end of each epoch is a checkpoint in any case.
        owned: Regular expression of the names of a subclass's `get_files`.
        remedy, resumes: What the error of a divergence advises, and says before the checkpoint.

    Raises:
        ValueError: If the dataset has no position, another process uses the directory, no
            checkpoint is valid, or the model, optimizer, strategy or dataset differs.
        FloatingPointError: From `fit`, if the training diverges.

    Example:

    >>> resume = ResumeTraining("checkpoints", dataset, every=500)
    >>> model.fit(dataset, epochs=10, shuffle=False, callbacks=[resume])
    """

    def __init__(
        self,
        path: Path,
        dataset: tf.data.Dataset,
        every: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        *,
        every_epoch: bool = False,
        owned: str | None = None,
        remedy: str = REMEDY,
        resumes: str = "it resumes from",
    ) -> None:
        super().__init__()
        require_tensorflow("ResumeTraining")
        if not hasattr(dataset, "stream"):
            raise ValueError(
                "dataset must be the result of make_dataset: pass those made from it to fit only."
            )
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 step or None, received {every}.")
        self.path = path
        self.dataset = dataset
        self.every = every
        self.callbacks = list(callbacks)
        self.every_epoch = every_epoch or every is not None
        self.remedy, self.resumes = remedy, resumes
        self.checkpoints = Checkpoints(path, owned)
        self.position = Position(batch=dataset.stream.position)
        self.skipped = 0  # number of steps of the current epoch that another process completed
        self._latest: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._opened = self._restored = False
        self._metrics: dict[str, np.ndarray] | None = None
        self._logs: dict[str, Any] = {}
        self._train_function: Any = None  # of the model, while steps are skipped
        self._exit_status: int | None = None
        self._is_multiworker = False
        self._save_seconds: float | None = None  # duration of the last save
        self._rate: float | None = None  # the learning rate that the script has given

    # --- for subclasses ---

    def get_state(self) -> Any:
        """Returns an additional state to save, which JSON can represent."""
        return None

    def set_state(self, state: Any) -> None:
        """Restores the state of `get_state`."""

    def get_files(self) -> dict[str, str]:
        """Returns other files in the directory that belong to the checkpoint: {name: checksum}."""
        return {}

    # --- resuming ---

    def open(self) -> bool:
        """Locks the directory, reads the last checkpoint, and returns whether there is one.

        `fit` does so automatically.
        """
        self.checkpoints.lock()
        self._latest = self.checkpoints.latest()
        self._opened = True
        if self._latest is None:
            return False
        state = self._latest[0]
        fields = {field.name: state[field.name] for field in dataclasses.fields(Position)}
        self.position = Position(**fields)
        self.set_state(copy.deepcopy(state["additional"]))  # not to change the checkpoint
        return True

    def close(self) -> None:
        """Unlocks the directory; the end of `fit` does so automatically."""
        self.checkpoints.release()
        self._opened = self._restored = False

    def set_model(self, model: keras.Model) -> None:
        """Sets the model; Keras does so in the order of the callbacks."""
        super().set_model(model)
        if any(callback.model is not model for callback in self.callbacks):
            raise ValueError(
                "ResumeTraining must come after the callbacks that it saves, in the list for fit."
            )

    def restore(self) -> None:
        """Restores everything except the metrics, which Keras resets later.

        Nothing is written before this has succeeded; `fit` does so automatically.
        """
        strategy = self.model.distribute_strategy
        try:
            self._is_multiworker = is_multiworker(strategy)
            self.checkpoints.writes = is_chief(strategy)
            if not self._opened:
                self.open()
            check_equal(strategy, "checkpoints", f"{self.position.epoch} {self.position.step}")
            latest, self._latest = self._latest, None
            try:
                build_ahead(self.model, self.dataset.element_spec)
            except Exception as error:
                # Not every model can be built from shapes; then the first step builds it.
                if latest is not None:
                    raise ValueError(
                        "The model must be built to restore a checkpoint, and cannot be built from "
                        "the shapes of the dataset: call it on a batch before fit."
                    ) from error
            optimizer = optimizer_of(self.model)
            rate = optimizer.get_config().get("learning_rate") if optimizer else None
            self._rate = rate if isinstance(rate, float) else None  # else a schedule
            if latest is not None:
                self._restore_checkpoint(*latest)
            if not self.checkpoints.entries:
                self.checkpoints.begin()
            self.checkpoints.clean()
        except Exception:
            self.close()
            raise
        self._restored = True

    def _restore_checkpoint(self, state, arrays):
        """Restores the next batch of the dataset, which must be the same, and all variables."""
        stream, rate = self.dataset.stream, state.get("learning_rate")
        here, there = stream.batches_per_pass, state["batches_per_pass"]
        if state.get("fingerprint", stream.fingerprint) != stream.fingerprint:
            here = "others" if here == there else here
        if here != there:
            raise ValueError(
                f"dataset must have {counted(there, 'batch', 'batches')} per pass to resume "
                f"{self.path}, received {here}: use the same text, tokenizers and options."
            )
        self.position.batch = tuple(state["batch"])
        arrays = scatter_metrics(self.model.distribute_strategy, arrays)
        write_variables(self.model, arrays, False, str(self.path))
        if None not in (rate, self._rate) and rate != self._rate:  # the script has a new one
            optimizer_of(self.model).learning_rate = self._rate
        set_states(self.callbacks, state["callbacks"], arrays)
        self._metrics, self._logs = arrays, state["logs"]

    # --- while fit runs ---

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts `fit` with the current epoch."""
        steps, executed = self.params["steps"], self.model.steps_per_execution
        if not self.dataset.stream.repeat and (steps is None or steps % executed):
            raise ValueError(
                "To resume within an epoch, its number of steps must be known and a multiple of "
                f"steps_per_execution={executed}, received {steps}: change one of the two."
            )
        if not self._restored:
            self.restore()
        epochs = self.params["epochs"]
        set_initial_epoch(self.model, epochs if self.position.ended else self.position.epoch)
        self._saved = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics, and lets the model skip the completed steps."""
        set_initial_epoch(self.model, 0)  # for the next `fit`
        if epoch != self.position.epoch:
            self.position.epoch, self.position.step = epoch, 0
        if self.position.step and self._metrics is not None:
            write_variables(self.model, self._metrics, True, str(self.path))
            # Keras starts every epoch with its first step. Completed steps take no batch from the
            # dataset, and return the logs of the last of them.
            self._train_function = self.model.train_function
            self.model.train_function = self._skip_step
        self._metrics = None
        self.skipped = self.position.step
        # Keras may create and drop iterators; the next one starts here.
        self.dataset.stream.position = self.position.batch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Trains again after the completed steps."""
        if batch >= self.skipped:
            self._stop_skipping()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the steps, and saves if a checkpoint is due."""
        done, stream, position = batch + 1, self.dataset.stream, self.position
        if done <= self.skipped:
            return
        count, before = done - position.step, position.total_steps
        if has_diverged(logs):
            self._stop_diverged(describe_step(done, position.epoch + 1), count)
        position.step, position.total_steps, self._logs = done, before + count, dict(logs or {})
        position.batch = stream.after(position.batch, count)
        # A worker that receives a signal cannot save without the others.
        if self._is_due(before) or (self._exit_status is not None and not self._is_multiworker):
            self.save()
        self._exit_if_requested()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the training step of the model if all steps were skipped."""
        self._stop_skipping()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stops if the validation loss is not finite."""
        if has_diverged(logs):
            self._stop_diverged(describe_validation(self.position.epoch + 1))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the end of an epoch if it is due."""
        self._stop_skipping()
        position, self.skipped, self._logs = self.position, 0, {}
        position.epoch, position.step = epoch + 1, 0
        position.ended = bool(self.model.stop_training)
        is_last = position.ended or position.epoch == self.params["epochs"]
        always = self.every_epoch or self._is_multiworker or self._exit_status is not None
        if always or is_last or self._is_due(position.total_steps):
            self.save()
        self._exit_if_requested()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Unlocks the directory."""
        set_initial_epoch(self.model, 0)
        self.dataset.stream.position = self.position.batch
        self.close()

    def _skip_step(self, iterator):
        return self._logs

    def _stop_skipping(self):
        if self._train_function is not None:
            self.model.train_function, self._train_function = self._train_function, None

    # --- saving ---

    def save(self) -> None:
        """Saves a checkpoint; if it cannot be written, earlier checkpoints stay valid."""
        start = time.monotonic()
        self.check_weights()
        arrays = gather_metrics(self.model.distribute_strategy, read_variables(self.model))
        states, more = get_states(self.callbacks)
        state = dataclasses.asdict(self.position) | {
            "applied": self._count_applied_steps(),
            "batches_per_pass": self.dataset.stream.batches_per_pass,
            "fingerprint": self.dataset.stream.fingerprint,
            "learning_rate": self._rate,
            "logs": self._logs,
            "callbacks": states,
            "additional": self.get_state(),
        }
        name = f"{self.position.epoch:06}-{self.position.step:08}"
        self.checkpoints.write(name, state, arrays | more, self.get_files())
        self._saved = time.monotonic()
        self._save_seconds = self._saved - start

    def _is_due(self, before):
        """Returns whether to save now; `before` is the number of steps at the previous call."""
        if self.every is not None:
            return self.position.total_steps // self.every > before // self.every
        pause = FIRST_SAVE_SECONDS
        if self._save_seconds is not None:
            pause = self._save_seconds / MAX_SAVE_SHARE
        return not self._is_multiworker and time.monotonic() - self._saved >= pause

    # --- stopping ---

    def check_weights(self) -> None:
        """Stops the training if weights are not finite."""
        if not all(map(is_finite, self.model.trainable_variables)):
            step, epoch = self.position.step, self.position.epoch + 1
            self._stop_diverged(f"a weight after step {step:,} of epoch {epoch:,}")

    def _stop_diverged(self, what, count=0):
        """Stops a training that diverged in or after the last `count` steps.

        Checkpoints from after these steps began are dropped: they would diverge again at any
        learning rate.
        """
        scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
        # Loss scaling skips steps that diverge.
        first = self._count_applied_steps() - (0 if scaled else count)
        remedy = self.remedy
        self.checkpoints.drop(first)
        if self.checkpoints.entries and self.checkpoints.writes:
            state = self.checkpoints.entries[-1]["state"]
            at = f"step {state['step']:,} of epoch {state['epoch'] + 1:,}"
            if not state["step"]:
                at = f"the end of epoch {state['epoch']:,}"
            remedy += f"; {self.resumes} {at}"
        self.close()
        stop_training(self.model, what, remedy)

    def _count_applied_steps(self):
        """Counts the steps that changed the weights; loss scaling skips others."""
        optimizer = self.model.optimizer
        return int(optimizer.iterations.numpy()) if optimizer else self.position.total_steps

    def request_exit(self, status: int) -> None:
        """Saves a checkpoint and raises `SystemExit` after the current step or validation."""
        self._exit_status = status

    def _exit_if_requested(self):
        if self._exit_status is not None:
            raise SystemExit(self._exit_status)


@contextlib.contextmanager
def save_on_signals(training: ResumeTraining) -> Iterator[None]:
    """Saves a training on SIGINT, SIGTERM and SIGHUP, and exits with 128 + the signal's number.

    The process saves and exits after the current step or validation. A second signal ends it
    immediately, except SIGHUP, which may come both from the shell and from the system. A SIGHUP
    that is ignored, as with `nohup`, stays ignored. Handlers are set in the main thread only, as
    Python requires.
    """
    received: list[int] = []

    def end(number, _):
        status = 128 + number
        if received:
            if number != signal.SIGHUP:
                os._exit(status)
            return
        received.append(status)
        training.request_exit(status)
        # Not with print, which is not reentrant.
        text = (
            f"keras-transformer: {signal.Signals(number).name}: saving the training, then exiting; "
            "continue it with --resume (another signal exits immediately)\n"
        )
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(sys.stderr.fileno(), text.encode())

    before = {}
    if threading.current_thread() is threading.main_thread():
        # The system sends SIGHUP when a terminal or an ssh connection closes.
        numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)
        before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
        if received:  # after the last step: everything is saved already
            raise SystemExit(received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
