"""Trains on the workers that TF_CONFIG names, or without it on one device; prints what came out.

    python tests/support/workers_training.py '{"recipes": ["sgd"], "updates": 20, ...}'

Options: `recipes`, some of "sgd", "rdrop", "adam" (at ε = 1, where rounding stays small) or "paper"
(the recipe's optimizer), each maybe followed by a precision; `updates`; `points`, a directory to
which the last of them is saved every third update, or none; `die`, the number of the update after
which this process kills itself, or none; `talk`, whether to print as well what workers tell each
other.
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
from tests.support.two_masks import TwoMasks  # noqa: E402

VOCABULARY = 30


def pairs():
    """Sentences of ids, of many lengths; batches that no two workers share evenly."""
    random = np.random.default_rng(4)

    def sentence():
        return " ".join(map(str, random.integers(4, VOCABULARY, random.integers(1, 12))))

    return [(sentence(), sentence()) for _ in range(101)]


def tokenizer(texts, end=False):
    """Ids, written as text, to ids."""
    ids = tf.strings.to_number(tf.strings.split(texts), tf.int32)
    return tf.concat([ids, tf.fill([ids.nrows(), 1], kt.END)], axis=1) if end else ids


def compiled(recipe, precision):
    model_class = TwoMasks if recipe == "rdrop" else kt.Transformer
    model = model_class(
        *(VOCABULARY, VOCABULARY, 1, 16, 2, 32),
        dropout=0.0,
        share_embeddings="all",
        dtype=precision,
    )
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        "adam": lambda: kt.EMAAdam(
            0.05, epsilon=1.0, use_ema=True, ema_momentum=0.9, weight_decay=0.01
        ),
        "paper": lambda: kt.EMAAdam(
            kt.WarmupInverseSqrt(peak=3e-3, warmup_steps=10), beta_2=0.98, epsilon=1e-9
        ),
    }
    model.compile(
        optimizers["sgd" if recipe == "rdrop" else recipe](),
        kt.SmoothedCrossEntropy(0.1),
        metrics=[kt.MaskedAccuracy(), kt.TargetTokens()],
        jit_compile=False,
        **(dict(accumulation_steps=2, clip_norm=0.5) if recipe == "adam" else {}),
        rdrop=2.0 if recipe == "rdrop" else 0.0,
    )
    return model


def train(strategy, recipe, precision="float32", updates=20, points=None, die=None):
    """Trains; what came out."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = compiled(recipe, precision)
    options = dict(tokens_per_batch=64, max_length=12, seed=2)
    read = pairs(), tokenizer, tokenizer
    dataset = kt.make_dataset(*read, **options, repeat=True)
    valid = kt.make_dataset(*read, **options, shuffle=False)
    seen = []
    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs))
    ]
    if points is not None:
        callbacks.append(kt.ResumeTraining(points, dataset, every=3))
    if die is not None:

        def kill(batch, logs):
            if len(seen) == die:
                os.kill(os.getpid(), signal.SIGKILL)

        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=kill))
    history = model.fit(
        dataset,
        validation_data=valid,
        epochs=2,
        steps_per_epoch=updates // 2,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    ).history
    ids = tf.constant([[5, 6, 7, 3]])
    return {
        "replicas": strategy.num_replicas_in_sync,
        "history": history,
        "names": [v.path.partition("/")[2] for v in model.trainable_variables],
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
