"""Files that a training leaves in its run directory, epoch by epoch."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.atomic_files import replacing
from keras_transformer.runs import files
from keras_transformer.runs.averaging import is_worse, load_mean, members, write_model
from keras_transformer.runs.history import COLUMNS, SCORES, write_history
from keras_transformer.runs.validation import averaged_weights
from keras_transformer.typing import Path

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer

RESUME = "resume.weights.h5"


class RunCheckpoint(keras.callbacks.Callback):
    """Keeps a run directory up to date: the best model, what to resume from, the history.

    Every file is written beside its place and moved there, so that a training killed at any moment
    leaves the last whole epoch behind.

    Args:
        path: The run directory.
        validate: Function from a model to its scores, such as `val_loss`, as `fit` logs them.
        monitor: `"val_loss"`, or a score that grows, such as `"val_bleu"`.
        keep: Number of checkpoints kept: so many of the best, and so many of the last.
        average: What becomes `model.keras` when training ends: `"none"`, the best checkpoint, which
            it is until then; `"best"` or `"last"`, the mean of those kept, unless that is worse.
        patience: Number of epochs without a new best after which the training ends, or None.
    """

    def __init__(
        self,
        path: Path,
        validate: Callable[[keras.Model], dict[str, float]],
        monitor: str = "val_loss",
        keep: int = 1,
        average: str = "none",
        patience: int | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.validate = validate
        self.folder = os.path.join(path, files.CHECKPOINTS)
        self.monitor = monitor
        self.keep = keep
        self.average = average
        self.patience = patience
        self.state: dict[str, Any] = {
            "epoch": 0,
            "monitor": monitor,
            "checkpoints": [],
            "history": [],
        }

    def restore(self, model: "Transformer") -> int:
        """Brings a built and compiled model back to where the last whole epoch ended.

        Args:
            model: Built like the one that was trained; its weights, optimizer and random state
                are overwritten.

        Returns:
            The number of epochs done; 0 where there is nothing to go on from.
        """
        state = files.read_state(self.path)
        if state is None:
            return 0
        self.state = state
        model.load_weights(os.path.join(self.folder, self.state["weights"]))
        for variable, value in zip(_random_states(model), self.state["random"], strict=True):
            variable.assign(value)
        return self.state["epoch"]

    @property
    def impatient(self) -> bool:
        """Tells whether the last `patience` epochs brought no new best."""
        if self.patience is None or not self.state["checkpoints"]:
            return False
        return self.state["epoch"] - self._ranked()[0]["epoch"] >= self.patience

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._started = time.monotonic()
        history = self.state["history"]
        self._before = history[-1]["minutes"] if history else 0.0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Saves the epoch that has just ended."""
        self.state["epoch"] = epoch + 1
        self.state["history"].append(self._history_row(logs))
        self._save_checkpoint(epoch + 1)
        self._save_resume_point()
        write_history(self.path, self.state["history"])
        self.model.stop_training = self.model.stop_training or self.impatient

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the mean of the checkpoints the model, unless it is worse than the best of them."""
        best, last = self._ranked()[: self.keep], self.state["checkpoints"][-self.keep :]
        chosen = {"none": [], "best": best, "last": last}[self.average]
        if len(chosen) < 2:
            return
        twin = self._twin()
        load_mean(self.path, twin, chosen)
        self.model.set_weights(twin.get_weights())
        scores, joined = self.validate(self.model), members(self.state, chosen)
        described = {"metrics": scores, "mean_of": joined}
        if is_worse(self.state, scores, joined):
            load_mean(self.path, twin, best[:1])
            alone = self.state["history"][best[0]["epoch"] - 1]
            described = {"metrics": alone, "worse_mean": scores | {"mean_of": list(joined)}}
        write_model(self.path, twin, described)

    def _history_row(self, logs):
        """One row of `history.csv`: totals since the training began, and the latest figures."""
        history = self.state["history"]
        tokens = history[-1]["target_tokens"] if history else 0
        row = {name: float(logs[name]) for name in COLUMNS + SCORES if name in logs}
        return row | {
            "step": int(self.model.optimizer.iterations.numpy()),
            "target_tokens": tokens + int(logs.get("target_tokens", 0)),
            "minutes": self._before + (time.monotonic() - self._started) / 60,
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
        """Writes the weights, forgets those that are neither good nor new, renews the model."""
        twin = self._twin()
        with averaged_weights(self.model):
            twin.set_weights(self.model.get_weights())
        name = f"{epoch:06}.weights.h5"
        with replacing(os.path.join(self.folder, name)) as temporary:
            twin.save_weights(temporary)
        checkpoints = self.state["checkpoints"]
        checkpoints.append({"file": name, "epoch": epoch})
        last, best = checkpoints[-self.keep :], self._ranked()[: self.keep]
        kept = [one for one in checkpoints if one in last or one in best]
        self._forgotten = [one["file"] for one in checkpoints if one not in kept]
        self.state["checkpoints"] = kept
        if best[0]["epoch"] == epoch:  # else the model is what it was
            write_model(self.path, twin, {"metrics": self.state["history"][-1]})

    def _save_resume_point(self):
        """Writes what `restore` reads; only then removes what is needed no more."""
        forgotten = [*self._forgotten, self.state.get("weights")]
        # The name carries the epoch, so that weights and state can never disagree.
        self.state["weights"] = f"{self.state['epoch']}.{RESUME}"
        self.state["random"] = [v.numpy().tolist() for v in _random_states(self.model)]
        self.model.save_weights(os.path.join(self.folder, self.state["weights"]))
        files.write_state(self.path, self.state)
        for name in forgotten:
            if name and name != self.state["weights"]:
                os.remove(os.path.join(self.folder, name))


def _random_states(model):
    """The states of the model's random generators, which Keras' weight files leave out."""
    return [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]
