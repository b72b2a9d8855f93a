"""What a run adds to `fit`: `RunCheckpoint` writes its directory, `Progress` logs; its summary."""

import contextlib
import os
import shlex
import shutil
import sys
import time
import zipfile
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from keras_transformer.presets import TrainConfig
from keras_transformer.runs.resume_training import ResumeTraining
from keras_transformer.runs.run import (
    CHECKPOINTS,
    COLUMNS,
    SCORES,
    WEIGHTS_PATTERN,
    Run,
    rank,
)
from keras_transformer.runs.training_data import list_differences
from keras_transformer.runs.validation import ema_weights
from keras_transformer.tokenizers.saved import describe_lost, model_type
from keras_transformer.utils import Path, counted, digest, replacing

if TYPE_CHECKING:
    from keras_transformer.runs.training_data import TrainingData
    from keras_transformer.transformer import Transformer

REMEDY = (
    "a smaller learning rate (--learning-rate), a longer warm-up (--warmup-steps) or gradients "
    "clipped by global norm (--clip-norm)"
)


class RunCheckpoint(ResumeTraining):
    """Writes a run directory: the best model, the checkpoints and the history.

    Files are written atomically, and those that refer to others come last. A training that is
    killed at any time resumes from the last checkpoint and writes the same files.

    Models are ranked by `validate_by` of the configuration; the best and the last
    `keep_checkpoints` are kept.
    """

    def __init__(self, run: Run, dataset: tf.data.Dataset, config: TrainConfig) -> None:
        super().__init__(
            run.file(CHECKPOINTS),
            dataset,
            config.save_every,
            every_epoch=True,
            owned=WEIGHTS_PATTERN,
            remedy=REMEDY,
            resumes="--resume continues from",
        )
        self.checkpoints.writes = run.writes
        self.run = run
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
        self.position.ended = self.out_of_patience  # `patience` may have changed

    def get_files(self) -> dict[str, str]:
        """Returns the kept weights with their checksums."""
        return {one["file"]: one["sha256"] for one in self.state["checkpoints"]}

    @property
    def out_of_patience(self) -> bool:
        """Whether none of the last `patience` epochs is the best."""
        if self.config.patience is None or not self.state["checkpoints"]:
            return False
        return self.state["epoch"] - rank(self.state)[0]["epoch"] >= self.config.patience

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
        """Marks the training as finished."""
        self.state["finished"] = True
        self.checkpoints.amend(additional=self.get_state())
        super().on_train_end(logs)

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

    def _save_weights(self, epoch):
        """Writes the weights, updates the list of kept ones, and writes the model if it is best."""
        # Uncompiled: without the optimizer, a third of the size.
        twin, name = type(self.model).from_config(self.model.get_config()), f"{epoch:06}.weights.h5"
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
            return digest(name)
        finally:
            with contextlib.suppress(OSError):
                os.remove(archive)


class Progress(keras.callbacks.Callback):
    """Prints the progress of a training on stderr.

    Prints a line every `log_every` seconds and at the end of each epoch; on a terminal at the end
    only, as Keras shows a progress bar. Must come after the callbacks that add to the logs.
    """

    def __init__(self, steps: int, checkpoint: RunCheckpoint) -> None:
        super().__init__()
        self.steps = steps  # per epoch
        self.checkpoint = checkpoint
        self.epochs, self.every = checkpoint.config.epochs, checkpoint.config.log_every
        self._start: tuple[float, int] | None = None  # time and number of the first step

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._epoch = epoch
        self._began = self._logged = time.monotonic()
        self._tokens = self._loss = 0.0  # totals of the epoch at the last line

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Logs a line if it is due; `batch` counts from 0 in every epoch."""
        now, step = time.monotonic(), self._epoch * self.steps + batch + 1
        # The first step traces the graph; those that another process has completed take no time.
        is_timed = self._start is not None and batch >= self.checkpoint.skipped
        if is_timed and now - self._logged < self.every:
            return
        tokens = float(logs["target_tokens"])
        total = float(logs["loss"]) * tokens  # Keras logs means over the epoch
        new, loss = tokens - self._tokens, total - self._loss
        if is_timed:
            self._print(
                f"step {step:,} of {self.steps * self.epochs:,}: loss {loss / max(new, 1):.4f}, "
                f"learning rate {float(self.model.optimizer.learning_rate):.2e}, "
                f"{new / max(now - self._logged, 1e-9):,.0f} target tokens/s, "
                f"{self._time_left(step)} left"
            )
        elif batch >= self.checkpoint.skipped:
            self._start = now, step
        self._logged, self._tokens, self._loss = now, tokens, total

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Logs the results of an epoch."""
        values = (f"{name} {float(x):.4g}" for name, x in logs.items() if "tokens" not in name)
        self._print(
            f"epoch {epoch + 1} of {self.epochs}: "
            f"{_format_duration(time.monotonic() - self._began)}, "
            f"{self._time_left((epoch + 1) * self.steps)} left; {', '.join(values)}"
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Prints which epoch is the best, and the command that translates with the model."""
        state = self.checkpoint.state
        best = rank(state)[0]["epoch"]
        score = state["history"][best - 1][state["monitor"]]
        command = f"keras-transformer translate {shlex.quote(str(self.checkpoint.run))} < FILE"
        text = f"best epoch {best}, {state['monitor']} {score:.4g}; to translate: {command}"
        print(text, file=sys.stderr, flush=True)

    def _print(self, text):
        if not sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    def _time_left(self, step):
        """Estimates the remaining time from all steps, and the validations between them."""
        start, first = self._start or (self._began, step - 1)
        per_step = (time.monotonic() - start) / max(step - first, 1)
        return _format_duration((self.epochs * self.steps - step) * per_step)


def _format_duration(seconds):
    """Formats a duration in seconds, minutes or hours."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


# --- the table that a training prints when it starts ---


def summarize_training(
    config: TrainConfig, data: "TrainingData", model: "Transformer", steps: int, output: str
) -> str:
    """Describes a training in some lines; `config.yaml` of the run has everything."""
    train, valid = data.fingerprints["train"], data.fingerprints["valid"]
    source, target = (
        f"{model_type(x.model)}, {x.vocabulary_size:,} tokens" for x in data.tokenizers
    )
    is_joint = config.model.share_embeddings == "all" and source == target
    if data.corpora:
        lost = "; ".join(filter(None, (corpus.lost for corpus, _ in data.corpora)))
    else:
        lost = describe_lost(data.tokenizers[1].model, [pair[1] for pair in data.pairs])
    replicas = model.distribute_strategy.num_replicas_in_sync
    options = [
        f"{name} {' '.join(value) if isinstance(value, tuple) else value}"
        for name, _, value in list_differences(TrainConfig(), config)
        if name != "imported"
    ]
    rows = {
        "pairs": f"{train['pairs']:,}, for validation {len(data.valid):,}"
        + " (of the training text itself)" * (train == valid),
        "vocabulary": f"{source}, joint" if is_joint else f"source {source}; target {target}",
        "targets": lost,
        "parameters": f"{model.count_params():,}",
        "steps": f"{counted(config.epochs, 'epoch')} of {counted(steps, 'step')}",
        "precision": config.precision,
        "devices": f"{counted(replicas, 'replica')}, {model.parallel_microbatches} in parallel",
        "options": ", ".join(options),
        "output": output,
    }
    return "\n".join(f"{title:12}{text}" for title, text in rows.items() if text)
