"""What happens at the end of every epoch of a training."""

import json
import math
import os

import keras

from keras_transformer.run_directory import MODEL

LAST, STATE = "last.weights.h5", "last.json"


class RunCheckpoint(keras.callbacks.Callback):
    """Keeps the best model by validation loss and what a resumed training goes on from.

    Every file is written beside its place and moved there, so that a training killed at any moment
    leaves the last whole epoch behind.

    Args:
        path: The run directory.
    """

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.folder = os.path.join(path, "checkpoints")
        self.state = {"epoch": 0, "best_val_loss": math.inf}

    def restore(self, model):
        """Brings a built and compiled model back to where the last whole epoch ended.

        Args:
            model: Built like the one that was trained; its weights, optimizer and random state
                are overwritten.

        Returns:
            The number of epochs done; 0 where there is nothing to go on from.
        """
        state = os.path.join(self.folder, STATE)
        if not os.path.exists(state):
            return 0
        with open(state, encoding="utf-8") as file:
            self.state = json.load(file)
        model.load_weights(os.path.join(self.folder, self.state["weights"]))
        for variable, value in zip(_random_states(model), self.state["random"], strict=True):
            variable.assign(value)
        return self.state["epoch"]

    def on_epoch_end(self, epoch, logs=None):
        """Saves the epoch that has just ended."""
        val_loss = float(logs["val_loss"])
        if val_loss < self.state["best_val_loss"]:
            self.state["best_val_loss"] = val_loss
            self._save_model()
        previous = self.state.get("weights")
        # The name carries the epoch, so that weights and state can never disagree.
        self.state |= {"epoch": epoch + 1, "weights": f"{epoch + 1}.{LAST}"}
        self.state["random"] = [v.numpy().tolist() for v in _random_states(self.model)]
        self.model.save_weights(os.path.join(self.folder, self.state["weights"]))
        with _replacing(os.path.join(self.folder, STATE)) as name:
            with open(name, "w", encoding="utf-8") as file:
                json.dump(self.state, file)
        if previous and previous != self.state["weights"]:
            os.remove(os.path.join(self.folder, previous))

    def _save_model(self):
        # A twin that was never compiled: a third of the size, without the optimizer's moments.
        twin = type(self.model).from_config(self.model.get_config())
        twin.build()
        twin.set_weights(self.model.get_weights())
        with _replacing(os.path.join(self.path, MODEL)) as name:
            twin.save(name)


def _random_states(model):
    """The states of the model's random generators, which Keras' weight files leave out."""
    return [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]


class _replacing:
    """A name to write to; what was written there takes the place of `path` at the end."""

    def __init__(self, path):
        folder, name = os.path.split(path)
        self.path = path
        self.name = os.path.join(folder, f"tmp.{name}")  # Keras goes by the ending

    def __enter__(self):
        return self.name

    def __exit__(self, error, *_):
        if error is None:
            os.replace(self.name, self.path)
