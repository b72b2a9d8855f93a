"""Trains on two replicas, with a stop and without; prints, as JSON, what differs: []. FOLDER is its
argument.

A program of its own, because logical devices must be made before TensorFlow starts.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.runs.training_state import read_variables
from tests.support.reversed_text import write_corpus  # noqa: E402


class Interrupting(keras.callbacks.Callback):
    """Ends a training as a kill would."""

    def __init__(self, update):
        super().__init__()
        self.update = update

    def on_train_batch_end(self, batch, logs=None):
        self.update -= 1
        if not self.update:
            raise InterruptedError


def fit(folder, pairs, tokenizer, strategy, seed=0, extra=()):
    """Three epochs, or as far as it comes: the model, and the logs of the epochs."""
    keras.utils.set_random_seed(seed)
    size = tokenizer.vocabulary_size
    with strategy.scope():
        model = kt.Transformer(size, size, 1, 8, 2, 16, dropout=0.3, share_embeddings="all")
        model.compile(
            kt.EMAAdam(0.01, use_ema=True),
            kt.SmoothedCrossEntropy(0.1),
            metrics=[kt.MaskedAccuracy(), kt.TargetTokens()],
            jit_compile=False,
        )
    dataset = kt.make_dataset(pairs, tokenizer, tokenizer, 128, 24, seed=5)
    callbacks = [kt.ResumeTraining(folder, dataset, every=2), *extra]
    try:
        model.fit(dataset, epochs=3, callbacks=callbacks, shuffle=False, verbose=0)
    except InterruptedError:
        return model, {}
    return model, model.history.history


def main(folder):
    strategy = kt.make_strategy("mirrored", logical_devices=2)
    assert strategy.num_replicas_in_sync == 2
    pairs = kt.read_pairs(*write_corpus(folder, 60, 1))
    tokenizer = kt.SubwordTokenizer.train([text for pair in pairs for text in pair[:2]], 290)
    whole, history = fit(folder / "whole", pairs, tokenizer, strategy)
    steps = int(whole.optimizer.iterations.numpy()) // 3
    assert steps > 4
    fit(folder / "one", pairs, tokenizer, strategy, 0, [Interrupting(steps + 3)])
    resumed, rest = fit(folder / "one", pairs, tokenizer, strategy, 1)
    arrays = [list(read_variables(model).items()) for model in (whole, resumed)]
    different = [
        name
        for (name, one), (_, other) in zip(*arrays, strict=True)
        if not np.array_equal(one, other)
    ]
    if {name: values[1:] for name, values in history.items()} != rest:
        different.append("history")
    print(json.dumps(different))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
