"""What a training tells while it runs: lines for people and curves for TensorBoard."""

import os
import sys
import time
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.runs.resume_training import ResumeTraining
from keras_transformer.typing import Path
from keras_transformer.wording import counted


class Lines:
    """Says a line on stderr, and adds it to a file if there is one.

    Args:
        path: Name of a text file to append to, or None.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def __call__(self, text: str, quiet: bool = False) -> None:
        """Says a line.

        Args:
            text: One line or several.
            quiet: Whether to write it into the file only.
        """
        if not quiet:
            print(text, file=sys.stderr, flush=True)
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:  # it may have been moved away
                print(text, file=file)


class Progress(keras.callbacks.Callback):
    """Says how a training gets on, where no bar does; draws curves by the update.

    A line every so many seconds, and one for each epoch; to a terminal, which has Keras' bar, none.
    Learning and validating are timed apart. Must come after the callbacks that add to the logs.

    Args:
        steps: Number of updates in an epoch.
        epochs: Number of epochs of the whole training.
        say: `Lines`.
        every: Seconds between two lines.
        folder: Directory for TensorBoard, or None: scalars of every tenth update.
        resume: What tells how many updates of an epoch were done in another process, or None.
    """

    DRAWN = 10  # updates from one point of a curve to the next

    def __init__(
        self,
        steps: int,
        epochs: int,
        say: Lines,
        every: float = 60.0,
        folder: Path | None = None,
        resume: ResumeTraining | None = None,
    ) -> None:
        super().__init__()
        self.steps = steps
        self.epochs = epochs
        self.say = say
        self.every = every
        self.resume = resume
        self.quiet = sys.stderr.isatty()
        self.board = folder and tf.summary.create_file_writer(os.path.join(folder, "updates"))
        self._traced = False
        self._seconds_of_validation = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clocks."""
        self._epoch = epoch
        self._began = self._said = time.monotonic()
        self._timed = self._began, 0  # from when on steps are timed, and how many were done by then
        self._ended: float | None = None
        self._for_line, self._for_board = _Stretch(), _Stretch()
        self._passed = self.resume.passed if self.resume else 0  # done by another process

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Says a line when it is time; `batch` counts from 0 in every epoch."""
        now, done = time.monotonic(), batch + 1
        if done <= self._passed:
            self._timed = now, done
            self._for_line.end(logs, now)
            self._for_board.end(logs, now)
            return
        if not self._traced:  # the first update, which is no measure of speed
            self._traced = True
            self._timed, self._said = (now, done), now
            self._for_line.end(logs, now)
            return
        update = self._epoch * self.steps + done
        if self.board and update % self.DRAWN == 0:
            loss, speed = self._for_board.end(logs, now)
            with self.board.as_default(update):
                tf.summary.scalar("loss", loss)
                tf.summary.scalar("learning_rate", self._learning_rate())
                tf.summary.scalar("target_tokens_per_second", speed)
        if now - self._said >= self.every:
            self._said = now
            loss, speed = self._for_line.end(logs, now)
            self.say(
                f"update {update:,} of {self.steps * self.epochs:,}: loss {loss:.4f}, learning "
                f"rate {self._learning_rate():.2e}, {speed:,.0f} target tokens a second, "
                f"{_duration(self._left(done, now))} left",
                self.quiet,
            )

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock of learning."""
        self._ended = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Says what an epoch has brought, and how long it and its validation took."""
        now = time.monotonic()
        ended = self._ended or now
        self._seconds_of_validation = now - ended
        values = (
            f"{name} {float(value):.4g}" for name, value in logs.items() if "tokens" not in name
        )
        left = self._left(self.steps, ended) - self._seconds_of_validation
        self.say(
            f"epoch {epoch + 1} of {self.epochs}: {counted(self.steps - self._passed, 'update')} "
            "in "
            f"{_duration(ended - self._began)}, validation in {_duration(now - ended)}, "
            f"{_duration(left)} left; {', '.join(values)}",
            self.quiet,
        )
        if self.board:
            self.board.flush()

    def _left(self, done, now):
        """Seconds until the end, if all goes on as in this epoch and in the last validation."""
        start, before = self._timed
        of_step = (now - start) / max(done - before, 1)
        epochs = self.epochs - self._epoch
        return (epochs * self.steps - done) * of_step + epochs * self._seconds_of_validation

    def _learning_rate(self):
        return float(self.model.optimizer.learning_rate)


class _Stretch:
    """The updates since the last report; Keras' logs are means since the epoch began."""

    def __init__(self):
        self.tokens, self.total, self.since = 0.0, 0.0, time.monotonic()

    def end(self, logs, now):
        """Mean loss per target token and target tokens a second; begins the next stretch."""
        before = self.tokens, self.total, self.since
        self.tokens = float(logs["target_tokens"])
        self.total = float(logs["loss"]) * self.tokens
        self.since = now
        tokens, total, seconds = (
            x - y for x, y in zip((self.tokens, self.total, now), before, strict=True)
        )
        return total / max(tokens, 1), tokens / max(seconds, 1e-9)


def _duration(seconds):
    """A length of time as people say it."""
    seconds = round(seconds)
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
