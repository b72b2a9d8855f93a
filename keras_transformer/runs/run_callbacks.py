"""The callbacks of a run: `RunCheckpoint` writes its directory, `Progress` logs."""

import contextlib
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.presets import TrainConfig
from keras_transformer.runs.checkpoints import file_checksum
from keras_transformer.runs.models import describe_members, is_mean_worse, load_mean
from keras_transformer.runs.resume_training import ResumeTraining
from keras_transformer.runs.run import (
    CHECKPOINTS,
    COLUMNS,
    LOGS,
    SCORES,
    WEIGHTS_PATTERN,
    Run,
    rank,
)
from keras_transformer.runs.validation import ema_weights
from keras_transformer.utils import Path, counted, replacing


class RunCheckpoint(ResumeTraining):
    """Writes a run directory: the best model, the checkpoints and the history.

    Files are written atomically, and those that refer to others come last. A training that is
    killed at any time resumes from the last checkpoint and writes the same files.

    Args:
        run: `Run`.
        dataset: The training data, as returned by `make_dataset`.
        validate: Function from a model to its scores, such as `val_loss`, with the names of `fit`.
        config: `TrainConfig`. Models are ranked by `validate_by`; the best and the last
            `keep_checkpoints` are kept; `average` selects those that are averaged at the end,
            unless the mean is worse than the best.
    """

    EVERY_EPOCH = True
    REMEDY = (
        "a smaller learning rate (--learning-rate), a longer warm-up (--warmup-steps) or gradients "
        "clipped by global norm (--clip-norm)"
    )
    RESUMES = "--resume continues from"

    def __init__(
        self,
        run: Run,
        dataset: tf.data.Dataset,
        validate: Callable[[keras.Model], dict[str, float]],
        config: TrainConfig,
    ) -> None:
        super().__init__(run.file(CHECKPOINTS), dataset, config.save_every, owned=WEIGHTS_PATTERN)
        self.checkpoints.writes = run.writes
        self.run = run
        self.validate = validate
        self.config = config
        self.state: dict[str, Any] = {
            "epoch": 0,
            "monitor": f"val_{config.validate_by}",
            "checkpoints": [],
            "history": [],
            "minutes": 0.0,
            "finished": False,
        }

    def get_state(self) -> dict[str, Any]:
        """Returns the state for `Run.read_state`."""
        return self.state | {"minutes": self._minutes()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the state."""
        self.state = state
        self.ended = self.out_of_patience  # `patience` may have changed

    def get_files(self) -> dict[str, str]:
        """Returns the kept weights with their checksums."""
        return {one["file"]: one["sha256"] for one in self.state["checkpoints"]}

    @property
    def out_of_patience(self) -> bool:
        """Whether none of the last `patience` epochs is the best."""
        if self.config.patience is None or not self.state["checkpoints"]:
            return False
        return self.state["epoch"] - rank(self.state)[0]["epoch"] >= self.config.patience

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, including the average of checkpoints."""
        return self.state["finished"] and (self.ended or self.epoch >= self.config.epochs)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the training and starts the clock."""
        super().on_train_begin(logs)
        if self.state["history"]:  # the file may be newer than the checkpoint
            self._write_history()
        self._started = time.monotonic()
        self._before = self.state["minutes"]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the epoch."""
        self.check_weights()
        self.state |= {"epoch": epoch + 1, "finished": False}
        self.state["history"].append(self._history_row(logs))
        self._save_weights(epoch + 1)
        self._write_history()
        self.model.stop_training = self.model.stop_training or self.out_of_patience
        super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Averages the checkpoints into the model, unless the mean is worse than the best."""
        keep = self.config.keep_checkpoints
        best, last = rank(self.state)[:keep], self.state["checkpoints"][-keep:]
        chosen = {"none": [], "best": best, "last": last}[self.config.average]
        if len(chosen) >= 2 and self.checkpoints.writes:
            self._save_average(chosen, best)
        self.state["finished"] = True
        self.checkpoints.amend(more=self.get_state())
        super().on_train_end(logs)

    def _save_average(self, chosen, best):
        twin = self._copy_model()
        load_mean(self.run, twin, chosen)
        scores, joined = self._validate(twin), describe_members(self.state, chosen)
        described = {"metrics": scores, "mean_of": joined}
        if is_mean_worse(self.state, scores, joined):
            load_mean(self.run, twin, best[:1])
            alone = self.state["history"][best[0]["epoch"] - 1]
            described = {"metrics": alone, "worse_mean": scores | {"mean_of": list(joined)}}
        self.run.write_model(twin, described)

    def _validate(self, model):
        """Scores a compiled copy of a model on this worker only."""
        copy = self._copy_model()
        copy.set_weights(model.get_weights())
        copy.compile(loss=self.model.loss, jit_compile=False)
        return self.validate(copy)

    def _minutes(self):
        return self._before + (time.monotonic() - self._started) / 60

    def _history_row(self, logs):
        """Returns a row of `history.csv`: totals of the training, and the scores of the epoch."""
        history = self.state["history"]
        tokens = history[-1]["target_tokens"] if history else 0
        row = {name: float(logs[name]) for name in COLUMNS + SCORES if name in logs}
        return row | {
            "step": int(self.model.optimizer.iterations.numpy()),
            "target_tokens": tokens + int(logs.get("target_tokens", 0)),
            "minutes": self._minutes(),
            "learning_rate": float(self.model.optimizer.learning_rate),
        }

    def _write_history(self):
        if self.checkpoints.writes:
            self.run.write_history(self.state["history"])

    def _copy_model(self):
        """Copies the model uncompiled: without the optimizer, a third of the size when saved."""
        return type(self.model).from_config(self.model.get_config())

    def _save_weights(self, epoch):
        """Writes the weights, updates the list of kept ones, and writes the model if it is best."""
        twin, name = self._copy_model(), f"{epoch:06}.weights.h5"
        with ema_weights(self.model):
            twin.set_weights(self.model.get_weights())
        writes, keep = self.checkpoints.writes, self.config.keep_checkpoints
        checksum = write_weights(self.run.file(CHECKPOINTS, name), twin) if writes else ""
        weights = self.state["checkpoints"]
        weights.append({"file": name, "epoch": epoch, "sha256": checksum})
        last, best = weights[-keep:], rank(self.state)[:keep]
        self.state["checkpoints"] = [one for one in weights if one in last or one in best]
        if best[0]["epoch"] == epoch and writes:
            self.run.write_model(twin, {"metrics": self.state["history"][-1]})


def write_weights(path: Path, model: keras.Model) -> str:
    """Writes a `.weights.h5` file atomically; returns its checksum.

    HDF5 ends the process if the disk is full. Therefore the weights are extracted from a `.keras`
    file, which Keras writes through memory if there is enough.
    """
    with replacing(path) as name:
        archive = f"{name}.keras"
        try:
            model.save(archive)
            with zipfile.ZipFile(archive) as file, open(name, "wb") as copy:
                with file.open("model.weights.h5") as weights:
                    shutil.copyfileobj(weights, copy)
            return file_checksum(name)
        finally:
            with contextlib.suppress(OSError):
                os.remove(archive)


class LineLogger:
    """Prints lines on stderr, and appends them to a file if given.

    Args:
        path: Name of a text file, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def __call__(self, text: str, quiet: bool = False) -> None:
        """Logs one or more lines; to the file only if `quiet`."""
        if not quiet:
            print(text, file=sys.stderr, flush=True)
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:  # reopened, as it may be rotated
                print(text, file=file)


class Progress(keras.callbacks.Callback):
    """Logs the progress of a training, and writes scalars of steps for TensorBoard.

    Logs a line every `log_every` seconds and at the end of each epoch; on a terminal to the file
    only, as Keras shows a progress bar. Training and validation are timed separately. Must come
    after the callbacks that add to the logs.

    Args:
        steps: Number of steps per epoch.
        config: `TrainConfig`, for `epochs` and `log_every`.
        log: `LineLogger`.
        run: `Run`; scalars of every tenth step are written to its `logs/steps`.
        checkpoint: The run's `RunCheckpoint`.
    """

    STEPS_PER_POINT = 10  # of TensorBoard's curves

    def __init__(
        self, steps: int, config: TrainConfig, log: LineLogger, run: Run, checkpoint: RunCheckpoint
    ) -> None:
        super().__init__()
        self.steps = steps
        self.epochs = config.epochs
        self.log = log
        self.every = config.log_every
        self.run = run
        self.checkpoint = checkpoint
        self.quiet = sys.stderr.isatty()
        self.board = tf.summary.create_file_writer(run.file(LOGS, "steps"))
        self._traced = False
        self._seconds_of_validation = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clocks."""
        self._epoch = epoch
        self._began = self._logged = time.monotonic()
        self._timed = self._began, 0  # time and number of steps at which timing starts
        self._ended: float | None = None
        self._for_line, self._for_board = _Interval(), _Interval()
        self._skipped = self.checkpoint.skipped  # completed by another process

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Logs a line if it is due; `batch` counts from 0 in every epoch."""
        now, done = time.monotonic(), batch + 1
        if done <= self._skipped:
            self._timed = now, done
            self._for_line.end(logs, now)
            self._for_board.end(logs, now)
            return
        if not self._traced:  # the first step is slow, as it traces the graph
            self._traced = True
            self._timed, self._logged = (now, done), now
            self._for_line.end(logs, now)
            return
        step = self._epoch * self.steps + done
        if step % self.STEPS_PER_POINT == 0:
            loss, speed = self._for_board.end(logs, now)
            with self.board.as_default(step):
                tf.summary.scalar("loss", loss)
                tf.summary.scalar("learning_rate", self._learning_rate())
                tf.summary.scalar("target_tokens_per_second", speed)
        if now - self._logged >= self.every:
            self._logged = now
            loss, speed = self._for_line.end(logs, now)
            self.log(
                f"step {step:,} of {self.steps * self.epochs:,}: loss {loss:.4f}, learning "
                f"rate {self._learning_rate():.2e}, {speed:,.0f} target tokens/s, "
                f"{_format_duration(self._seconds_left(done, now))} left",
                self.quiet,
            )

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock of training."""
        self._ended = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Logs the results of an epoch, and the durations of training and validation."""
        now = time.monotonic()
        ended = self._ended or now
        self._seconds_of_validation = now - ended
        values = (
            f"{name} {float(value):.4g}" for name, value in logs.items() if "tokens" not in name
        )
        left = self._seconds_left(self.steps, ended) - self._seconds_of_validation
        self.log(
            f"epoch {epoch + 1} of {self.epochs}: {counted(self.steps - self._skipped, 'step')} "
            f"in {_format_duration(ended - self._began)}, validation in "
            f"{_format_duration(now - ended)}, {_format_duration(left)} left; {', '.join(values)}",
            self.quiet,
        )
        self.board.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Logs which epoch is the best, and the command that translates with the model."""
        state = self.checkpoint.state
        best = rank(state)[0]["epoch"]
        score = state["history"][best - 1][state["monitor"]]
        command = f"keras-transformer translate {self.run} < FILE"
        self.log(f"best epoch {best}, {state['monitor']} {score:.4g}; to translate: {command}")

    def _seconds_left(self, done, now):
        """Estimates the remaining seconds from this epoch and the last validation."""
        start, before = self._timed
        seconds_per_step = (now - start) / max(done - before, 1)
        epochs = self.epochs - self._epoch
        return (
            epochs * self.steps - done
        ) * seconds_per_step + epochs * self._seconds_of_validation

    def _learning_rate(self):
        return float(self.model.optimizer.learning_rate)


class _Interval:
    """The steps since the last report; the logs of Keras are means over the epoch."""

    def __init__(self) -> None:
        self.tokens, self.total, self.since = 0.0, 0.0, time.monotonic()

    def end(self, logs, now):
        """Returns the mean loss per target token and target tokens/s; starts a new interval."""
        before = self.tokens, self.total, self.since
        self.tokens = float(logs["target_tokens"])
        self.total = float(logs["loss"]) * self.tokens
        self.since = now
        tokens, total, seconds = (
            x - y for x, y in zip((self.tokens, self.total, now), before, strict=True)
        )
        return total / max(tokens, 1), tokens / max(seconds, 1e-9)


def _format_duration(seconds):
    """Formats a duration in seconds, minutes or hours."""
    seconds = round(seconds)
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
