"""What needs replicas, in a process of its own: its tasks are the functions in `TASKS`.

python tests/support/mirrored_training.py 2 '[["compare", {"rows": [7, 1]}], ["canary", {}]]'
"""

import functools
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_transformer as kt  # noqa: E402
from tests.support.workers_training import recipe_of  # noqa: E402
from tests.training.test_gradients import Small  # noqa: E402
from tests.training.test_keras_workarounds import living_graphs  # noqa: E402
from tests.training.test_token_trainer import Tagger  # noqa: E402


def batches(rows_of_batches):
    """Batches of different lengths, each row with a number of tokens of its own."""
    random = np.random.default_rng(5)
    for number, rows in enumerate(rows_of_batches):
        ids, labels = random.integers(4, 20, (2, rows, (5, 4, 8)[number % 3]))
        for row in range(rows):
            # Ignored either way.
            labels[row, random.integers(1, labels.shape[1] + 1) :] = (kt.PAD, -100)[row % 2]
        yield ids.astype("int32"), labels.astype("int32")


def make_dataset(rows_of_batches, weighted):
    """The batches as `kt.make_dataset` would hand them on: (B, T), (B, T)."""
    ids = tf.TensorSpec([None, None], tf.int32)
    made = functools.partial(batches, rows_of_batches)
    dataset = tf.data.Dataset.from_generator(made, output_signature=(ids, ids))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(rows_of_batches)))
    if weighted:
        dataset = dataset.map(lambda x, y: (x, y, tf.cast(y % 3 + 1, tf.float32)))
    return dataset


def run(strategy, rows, precision, recipe):
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(precision)
    with strategy.scope():
        metrics = {"weighted_metrics" if recipe == "weights" else "metrics": [kt.MaskedAccuracy()]}
        model = Small("own" if recipe == "adam" else "shared")
        model.compile(**recipe_of(recipe), **metrics)
    dataset = make_dataset(rows, recipe == "weights")
    # On its own and ahead of training: what `evaluate` builds must do for `fit` as well.
    before = model.evaluate(dataset, verbose=0, return_dict=True)
    history = model.fit(dataset, validation_data=dataset, shuffle=False, verbose=0).history
    ids, _ = next(batches([max(rows)]))
    logits = model.predict(tf.data.Dataset.from_tensor_slices((ids,)).batch(5), verbose=0)
    keras.config.set_dtype_policy("float32")
    return {
        "replicas": strategy.num_replicas_in_sync,
        "history": history | {f"before_{name}": [value] for name, value in before.items()},
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": np.concatenate([w.ravel() for w in model.get_weights()]).tolist(),
        "logits": logits.tolist(),
    }


def compare(strategy, rows, recipe, precision="float32"):
    """What one device comes to, and what the replicas do; "weights" has sample weights."""
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    return [run(devices, rows, precision, recipe) for devices in (one, strategy)]


def canary(strategy):
    """What Keras says to an odd first batch, what ours to a model made outside, and `averages`."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as odd:
            model.fit(np.ones((3, 2)), np.ones((3, 1)), batch_size=3, verbose=0)
    model = Tagger()
    model(np.ones((2, 3)))
    with strategy.scope(), pytest.raises(ValueError) as outside:
        model.compile("sgd", "mse")
    return str(odd.value), str(outside.value), averages(strategy)


def averages(strategy):
    """A step of a loss that is no mean over target tokens, and how far Keras' is from it."""
    ids = np.tile(np.arange(4, 9), (6, 1))
    ids[:3, 1:] = kt.PAD
    steps = []
    for own in (True, False):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = Tagger(mask_zero=True)
            model(ids)
            if not own:
                model.train_step = functools.partial(keras.Model.train_step, model)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
        before = model.get_weights()[0]
        model.fit(ids, ids, batch_size=6, shuffle=False, verbose=0)
        steps.append(model.get_weights()[0] - before)
    return [float(np.abs(step).max()) for step in (steps[0], steps[0] - steps[1])]


def graphs(strategy):
    """How many graphs outlive a model that was trained on replicas: 0."""
    counts, data = [], make_dataset([6], False)
    for _ in range(2):
        with strategy.scope():
            model = Small()
            model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False, clip_norm=1.0)
        model.fit(data, validation_data=data, shuffle=False, verbose=0)
        del model
        counts.append(living_graphs())
    return counts[1] - counts[0]


TASKS = {task.__name__: task for task in (compare, canary, graphs)}

if __name__ == "__main__":
    devices = kt.make_strategy("mirrored", logical_devices=int(sys.argv[1]))
    answers = [TASKS[name](devices, **options) for name, options in json.loads(sys.argv[2])]
    print(json.dumps(answers))
