"""Trains on the workers that TF_CONFIG names, or without it on one device; prints what came out.

    python tests/support/workers_training.py '{"recipes": ["adam"], ...}'

Options: `recipes`, "rdrop" or "adam" (at ε = 1, where rounding stays small), each maybe followed
by a precision; `points`, a directory to which the last of them is saved every third update, or
none; `die`, the number of the update after which this process kills itself, or none; `talk`,
whether to print as well what workers tell each other.
"""

import json
import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.training.cluster import joined_cluster  # noqa: E402
from keras_transformer.training.distribution import (
    broadcast_from_chief,
    check_equal,
    gather_from_workers,
)  # noqa: E402
from tests.support.numbered_pairs import dataset_of, random_pairs  # noqa: E402
from tests.support.two_masks import TwoMasks  # noqa: E402

VOCABULARY = 201  # of the first tokens, which number the pairs


def compiled(recipe, precision):
    sizes = VOCABULARY, VOCABULARY, 1, 16, 2, 32
    options = dict(dropout=0.0, share_embeddings="all", dtype=precision)
    with_loss = dict(loss=kt.SmoothedCrossEntropy(0.1), jit_compile=False)
    with_loss |= dict(metrics=[kt.MaskedAccuracy(), kt.TargetTokens()])
    if recipe == "rdrop":
        model = TwoMasks(*sizes, **options)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), rdrop=2.0, **with_loss)
    else:
        model = kt.Transformer(*sizes, **options)
        adam = dict(epsilon=1.0, use_ema=True, ema_momentum=0.9, weight_decay=0.01)
        how = dict(accumulation_steps=2, clip_norm=0.5)
        model.compile(kt.EMAAdam(0.05, **adam), **how, **with_loss)
    return model


def train(strategy, recipe, precision="float32", points=None, die=None):
    """Trains; what came out."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = compiled(recipe, precision)
    # Of many lengths: batches that no two workers share evenly.
    read = random_pairs(101, 11), 64, 12
    dataset = dataset_of(*read, seed=2, repeat=True)
    valid = dataset_of(*read, shuffle=False)
    seen = []

    def kill(batch, logs):
        if len(seen) == die:
            os.kill(os.getpid(), signal.SIGKILL)

    at_end = lambda batch, logs: seen.append(logs), kill
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=function) for function in at_end]
    if points is not None:
        callbacks.insert(1, kt.ResumeTraining(points, dataset, every=3))
    history = model.fit(
        dataset,
        validation_data=valid,
        epochs=2,
        steps_per_epoch=10,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    ).history
    ids = tf.constant([[5, 6, 7, 3]])
    return {
        "replicas": strategy.num_replicas_in_sync,
        "history": history,
        "weights": [v.numpy().ravel().tolist() for v in model.trainable_variables],
        "logits": model((ids, ids), training=False).numpy().ravel().tolist(),
        "last_step": {name: float(value) for name, value in seen[-1].items()},
        "evaluated": model.evaluate(valid, verbose=0, return_dict=True),
    }


def talk(strategy):
    """What workers get to hear of each other, where each says something else."""
    index = joined_cluster().index
    said = None
    try:
        check_equal(strategy, "texts", f"of {index}")
    except ValueError as error:
        said = str(error)
    check_equal(strategy, "texts", "of all")
    return {
        "said": said,
        "agreed": broadcast_from_chief(strategy, {"x": 3.5 - index, "y": index + 1}),
        "gathered": gather_from_workers(strategy, np.array([index, 7.0])).tolist(),
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    devices = kt.make_strategy("auto")
    *recipes, last = given.pop("recipes")
    talks, points = given.pop("talk", False), given.pop("points", None)
    answers = [train(devices, *recipe.split(), **given) for recipe in recipes]
    answers.append(train(devices, *last.split(), **given, points=points))
    print(json.dumps([*answers, talk(devices)] if talks else answers))
