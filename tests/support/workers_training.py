"""Trains on the workers that TF_CONFIG names, or without it on one device; prints lines of JSON."""

import json
import os
import signal
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.training import distribution  # noqa: E402
from keras_transformer.training.cluster import joined_cluster  # noqa: E402
from tests.support.numbered_pairs import numbers  # noqa: E402
from tests.training.test_gradients import Small  # noqa: E402


class OfTargets(Small):
    fused_loss = True

    def softmax_inputs(self, inputs, training=None):
        return super().softmax_inputs(inputs[1], training)


def random_pairs(count=101, longest=11):
    """Of many lengths: batches that no two workers share evenly."""
    random = np.random.default_rng(7)
    lengths = random.integers(1, longest + 1, (count, 2))
    return [tuple(" ".join(map(str, random.integers(4, 20, n))) for n in both) for both in lengths]


def recipe_of(name):
    options = dict(loss=kt.SmoothedCrossEntropy(0.1), jit_compile=False)
    if name != "adam":
        sgd = keras.optimizers.SGD(0.05, momentum=0.9)
        return options | dict(optimizer=sgd) | (dict(rdrop=2.0) if name == "rdrop" else {})
    # So large an epsilon that Adam comes near momentum: otherwise it would blow up rounding errors
    # of gradients near zero.
    how = dict(epsilon=1.0, use_ema=True, ema_momentum=0.9, weight_decay=0.01)
    return options | dict(optimizer=kt.EMAAdam(1.0, **how), accumulation_steps=2, clip_norm=0.5)


def train(strategy, recipe, points=None, die=None):
    """`points`: a directory to save to; `die`: the update after which this process kills itself."""
    recipe, _, precision = recipe.partition(" ")
    keras.config.set_dtype_policy(precision or "float32")
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, metrics = OfTargets(), [kt.MaskedAccuracy(), kt.TargetTokens()]
        model.compile(metrics=metrics, **recipe_of(recipe))
    read = random_pairs(), numbers, numbers, 64, 12
    dataset = kt.make_dataset(*read, seed=2, repeat=True)
    valid = kt.make_dataset(*read, shuffle=False)
    seen = []

    def kill(batch, logs):
        if len(seen) == die:
            os.kill(os.getpid(), signal.SIGKILL)

    at_end = lambda batch, logs: seen.append(logs), kill
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=function) for function in at_end]
    if points is not None:
        callbacks.insert(1, kt.ResumeTraining(points, dataset, every=3))
    options = dict(epochs=2, steps_per_epoch=10, shuffle=False, verbose=0, callbacks=callbacks)
    history = model.fit(dataset, validation_data=valid, **options).history
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
    with pytest.raises(ValueError) as said:
        distribution.check_equal(strategy, "texts", f"of {index}")
    distribution.check_equal(strategy, "texts", "of all")
    return {
        "said": str(said.value),
        "agreed": distribution.broadcast_from_chief(strategy, {"x": 3.5 - index, "y": index + 1}),
        "gathered": distribution.gather_from_workers(strategy, np.array([index, 7.0])).tolist(),
    }


if __name__ == "__main__":
    devices = kt.make_strategy("auto")
    if devices.num_replicas_in_sync > 1:
        print(json.dumps(talk(devices)), flush=True)
    for training in json.loads(sys.argv[1]):
        print(json.dumps(train(devices, **training)), flush=True)
