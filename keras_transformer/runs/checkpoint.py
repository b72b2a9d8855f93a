"""Files that a training leaves in its run directory, epoch by epoch."""

import os
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.runs import files
from keras_transformer.runs.averaging import (
    is_worse,
    load_mean,
    members,
    write_model,
    write_weights,
)
from keras_transformer.runs.history import COLUMNS, SCORES, write_history
from keras_transformer.runs.resume_training import ResumeTraining
from keras_transformer.runs.validation import averaged_weights
from keras_transformer.typing import Path


class RunCheckpoint(ResumeTraining):
    """Keeps a run directory up to date: the best model, what to resume from, the history.

    Every file is written beside its place and moved there, and what names others comes last: a
    training killed at any moment goes on from the last point, and comes to the same files.

    Args:
        path: The run directory.
        dataset: What the run learns from, as `make_dataset` has returned it.
        validate: Function from a model to its scores, such as `val_loss`, as `fit` logs them.
        monitor: `"val_loss"`, or a score that grows, such as `"val_bleu"`.
        keep: Number of checkpoints kept: so many of the best, and so many of the last.
        average: What becomes `model.keras` when training ends: `"none"`, the best checkpoint, which
            it is until then; `"best"` or `"last"`, the mean of those kept, unless that is worse.
        patience: Number of epochs without a new best after which the training ends, or None.
        every: As `ResumeTraining` has it.
    """

    EVERY_EPOCH = True
    REMEDY = (
        "a smaller learning rate (--peak), a longer warm-up (--warmup-steps) or gradients clipped "
        "by global norm (--clip-norm)"
    )
    RESUMES = "--resume continues from"

    def __init__(
        self,
        path: Path,
        dataset: tf.data.Dataset,
        validate: Callable[[keras.Model], dict[str, float]],
        monitor: str = "val_loss",
        keep: int = 1,
        average: str = "none",
        patience: int | None = None,
        every: int | None = None,
    ) -> None:
        self.folder = os.path.join(path, files.CHECKPOINTS)
        super().__init__(self.folder, dataset, every, owned=files.OWNED)
        self.run = path
        self.validate = validate
        self.monitor = monitor
        self.keep = keep
        self.average = average
        self.patience = patience
        self.state: dict[str, Any] = {
            "epoch": 0,
            "monitor": monitor,
            "checkpoints": [],
            "history": [],
            "minutes": 0.0,
            "finished": False,
        }

    def get_state(self) -> dict[str, Any]:
        """What is saved beside the variables, as `files.read_state` returns it."""
        return self.state | {"minutes": self._minutes()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what was saved."""
        self.state = state
        self.ended = self.impatient  # by the patience that this training has

    def get_files(self) -> dict[str, str]:
        """The checkpoints that are kept, with their checksums."""
        return {one["file"]: one["sha256"] for one in self.state["checkpoints"]}

    @property
    def impatient(self) -> bool:
        """Tells whether the last `patience` epochs brought no new best."""
        if self.patience is None or not self.state["checkpoints"]:
            return False
        return self.state["epoch"] - self._ranked()[0]["epoch"] >= self.patience

    def is_finished(self, epochs: int) -> bool:
        """Tells whether all is done of a training of so many epochs, the mean included."""
        return self.state["finished"] and (self.ended or self.epoch >= epochs)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the training and starts the clock."""
        super().on_train_begin(logs)
        if self.state["history"] and self.points.writes:  # it may be of a newer point, now damaged
            write_history(self.run, self.state["history"])
        self._started = time.monotonic()
        self._before = self.state["minutes"]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the epoch that has just ended."""
        self.check_weights()
        self.state |= {"epoch": epoch + 1, "finished": False}
        self.state["history"].append(self._history_row(logs))
        self._save_checkpoint(epoch + 1)
        if self.points.writes:
            write_history(self.run, self.state["history"])
        self.model.stop_training = self.model.stop_training or self.impatient
        super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the mean of the checkpoints the model, unless it is worse than the best of them."""
        best, last = self._ranked()[: self.keep], self.state["checkpoints"][-self.keep :]
        chosen = {"none": [], "best": best, "last": last}[self.average]
        if len(chosen) >= 2 and self.points.writes:
            self._average(chosen, best)
        self.state["finished"] = True
        self.points.amend(more=self.get_state())
        super().on_train_end(logs)

    def _average(self, chosen, best):
        twin = self._twin()
        load_mean(self.run, twin, chosen)
        scores, joined = self._validated(twin), members(self.state, chosen)
        described = {"metrics": scores, "mean_of": joined}
        if is_worse(self.state, scores, joined):
            load_mean(self.run, twin, best[:1])
            alone = self.state["history"][best[0]["epoch"] - 1]
            described = {"metrics": alone, "worse_mean": scores | {"mean_of": list(joined)}}
        write_model(self.run, twin, described)

    def _validated(self, model):
        """The scores of a model by itself, without other workers: of a copy, which is compiled."""
        copy = self._twin()
        copy.set_weights(model.get_weights())
        copy.compile(loss=self.model.loss, jit_compile=False)
        return self.validate(copy)

    def _minutes(self):
        return self._before + (time.monotonic() - self._started) / 60

    def _history_row(self, logs):
        """One row of `history.csv`: totals since the training began, and the latest figures."""
        history = self.state["history"]
        tokens = history[-1]["target_tokens"] if history else 0
        row = {name: float(logs[name]) for name in COLUMNS + SCORES if name in logs}
        return row | {
            "step": int(self.model.optimizer.iterations.numpy()),
            "target_tokens": tokens + int(logs.get("target_tokens", 0)),
            "minutes": self._minutes(),
            "learning_rate": float(self.model.optimizer.learning_rate),
        }

    def _ranked(self):
        """The checkpoints, best first."""
        return files.rank(self.state)

    def _twin(self):
        """A model that was never compiled: a third of the size, without the optimizer's moments."""
        twin = type(self.model).from_config(self.model.get_config())
        twin.build()
        return twin

    def _save_checkpoint(self, epoch):
        """Writes the weights, drops those that are neither good nor new, renews the model."""
        twin, name = self._twin(), f"{epoch:06}.weights.h5"
        with averaged_weights(self.model):
            twin.set_weights(self.model.get_weights())
        checksum = ""
        if self.points.writes:
            checksum = write_weights(os.path.join(self.folder, name), twin)
        checkpoints = self.state["checkpoints"]
        checkpoints.append({"file": name, "epoch": epoch, "sha256": checksum})
        last, best = checkpoints[-self.keep :], self._ranked()[: self.keep]
        self.state["checkpoints"] = [one for one in checkpoints if one in last or one in best]
        if best[0]["epoch"] == epoch and self.points.writes:  # else the model is what it was
            write_model(self.run, twin, {"metrics": self.state["history"][-1]})
