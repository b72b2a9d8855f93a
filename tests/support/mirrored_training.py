"""What needs replicas, in a process of its own: logical devices come before TensorFlow starts.

    python tests/support/mirrored_training.py 2 '[["compare", {"rows": [7, 1]}], ["canary", {}]]'

The number of replicas, one a process, and tasks: functions below, with their arguments. It prints
what they return, as JSON.
"""

import contextlib
import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_transformer as kt  # noqa: E402
from keras_transformer.runs.training_state import read_variables  # noqa: E402
from tests.support.reversed_text import write_corpus  # noqa: E402
from tests.support.two_masks import TwoMasks  # noqa: E402

ADAM = dict(epsilon=1.0, use_ema=True, ema_momentum=0.9, weight_decay=0.01)


def batches(rows_of_batches):
    """Batches of different lengths, each row with a number of tokens of its own."""
    random = np.random.default_rng(5)
    lengths = [(6, 5), (9, 4), (12, 8)]
    for number, rows in enumerate(rows_of_batches):
        source_length, target_length = lengths[number % len(lengths)]
        source = random.integers(4, 20, (rows, source_length))
        target = random.integers(4, 20, (rows, target_length))
        for row in range(rows):
            target[row, random.integers(1, target_length + 1) :] = kt.PAD
            source[row, random.integers(2, source_length + 1) :] = kt.PAD
        target_in = np.concatenate([np.full((rows, 1), kt.START), target[:, :-1]], axis=1)
        odd = np.arange(rows)[:, None] % 2 == 1
        labels = np.where((target == kt.PAD) & odd, -100, target)  # ignored either way
        yield (source.astype("int32"), target_in.astype("int32")), labels.astype("int32")


def make_dataset(rows_of_batches, weighted):
    """The batches as `kt.make_dataset` would hand them on: (B, S), (B, T), (B, T)."""
    ids = tf.TensorSpec([None, None], tf.int32)
    dataset = tf.data.Dataset.from_generator(
        lambda: batches(rows_of_batches), output_signature=((ids, ids), ids)
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(rows_of_batches)))
    if not weighted:
        return dataset
    return dataset.map(lambda x, y: (x, y, tf.cast(y % 3 + 1, tf.float32)))


def run(strategy, rows, precision, recipe):
    """What a strategy comes to."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model_class = TwoMasks if recipe == "rdrop" else kt.Transformer
        model = model_class(
            20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="target", dtype=precision
        )
        # Plain momentum, or so large an epsilon that Adam comes near it: otherwise Adam would blow
        # up rounding errors of gradients near zero.
        sgd = keras.optimizers.SGD(0.05, momentum=0.9)
        model.compile(
            kt.EMAAdam(0.05, **ADAM) if recipe == "options" else sgd,
            kt.SmoothedCrossEntropy(0.1),
            **{"weighted_metrics" if recipe == "weights" else "metrics": [kt.MaskedAccuracy()]},
            jit_compile=False,
            **(dict(accumulation_steps=2, clip_norm=0.5) if recipe == "options" else {}),
            rdrop=2.0 if recipe == "rdrop" else 0.0,
        )
    dataset = make_dataset(rows, recipe == "weights")
    # On its own and ahead of training: what `evaluate` builds must do for `fit` as well.
    before = model.evaluate(dataset, verbose=0, return_dict=True)
    history = model.fit(dataset, validation_data=dataset, shuffle=False, verbose=0).history
    ids, *_ = next(batches([max(rows)]))
    logits = model.predict(tf.data.Dataset.from_tensor_slices((ids,)).batch(5), verbose=0)
    return {
        "replicas": strategy.num_replicas_in_sync,
        "history": history | {f"before_{name}": [value] for name, value in before.items()},
        "steps": int(model.optimizer.iterations.numpy()),
        "weights": np.concatenate([w.ravel() for w in model.get_weights()]).tolist(),
        "logits": logits.tolist(),
    }


def compare(strategy, rows, precision="float32", recipe="plain"):
    """What one device comes to, and what the replicas do.

    Recipes: "options" (gradients accumulated over parts and clipped, weight decay, the recipe's
    optimizer with its running mean), "rdrop" or "weights" (sample weights, which the fused loss
    does not take).
    """
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    return [run(devices, rows, precision, recipe) for devices in (one, strategy)]


# What Keras itself does.


def canary(strategy):
    """What Keras' own model says to an odd first batch on two replicas, what ours says to a model
    that was created outside the scope, and `averages`."""
    with strategy.scope():
        model, odd = keras.Sequential([keras.layers.Dense(1)]), None
        try:
            model.compile("sgd", "mse")
            model.fit(np.ones((3, 2)), np.ones((3, 1)), batch_size=3, verbose=0)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            odd = str(error)
    model, outside = tagger(kt.TokenTrainer), None
    model(np.ones((2, 3)))
    try:
        with strategy.scope():
            model.compile("sgd", "mse")
    except ValueError as error:
        outside = str(error)
    return odd, outside, averages(strategy)


def tagger(base, outputs=1):
    """A model whose outputs carry the mask of its inputs."""

    class Tagger(base):
        def __init__(self):
            super().__init__()
            self.embedding = kt.PositionalEmbedding(20, 8)

        def call(self, ids):
            logits = self.embedding.logits(self.embedding(ids))
            logits._keras_mask = self.embedding.compute_mask(ids)
            return logits if outputs == 1 else [logits] * outputs

    return Tagger()


def averages(strategy):
    """How far the weights of ours are from those of Keras, after a step of losses that are no mean
    over target tokens on two replicas with different numbers of them."""
    ids = np.tile(np.arange(4, 9), (6, 1))
    ids[:3, 1:] = kt.PAD
    masked = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    distances = []
    for loss, outputs in ((masked, 1), ([kt.SmoothedCrossEntropy()] * 2, 2)):
        weights = []
        for base in (kt.TokenTrainer, keras.Model):
            keras.utils.set_random_seed(3)
            with strategy.scope():
                model = tagger(base, outputs)
                model(ids)
                model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
            y = ids if outputs == 1 else [ids, ids[::-1]]
            before = model.get_weights()[0]
            model.fit(ids, y, batch_size=6, shuffle=False, verbose=0)
            weights.append(model.get_weights()[0] - before)
        distances.append([float(np.abs(w).max()) for w in (weights[0], weights[0] - weights[1])])
    return distances


# Runs.


class Interrupting(keras.callbacks.Callback):
    """Ends a training as a kill would."""

    def __init__(self, update):
        super().__init__()
        self.update = update

    def on_train_batch_end(self, batch, logs=None):
        self.update -= 1
        if not self.update:
            raise InterruptedError


def fit(folder, strategy, seed=0, extra=()):
    """Two epochs, or as far as it comes: the variables, and the logs of the epochs."""
    keras.utils.set_random_seed(seed)
    pairs = kt.read_pairs(*write_corpus(folder, 60, 1))
    tokenizer = kt.SubwordTokenizer.train([text for pair in pairs for text in pair[:2]], 290)
    size = tokenizer.vocabulary_size
    with strategy.scope():
        model = kt.Transformer(size, size, 1, 8, 2, 16, dropout=0.3, share_embeddings="all")
        optimizer, metrics = kt.EMAAdam(0.01, use_ema=True), [kt.MaskedAccuracy()]
        model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), metrics=metrics, jit_compile=False)
    dataset = kt.make_dataset(pairs, tokenizer, tokenizer, 128, 24, seed=5)
    callbacks = [kt.ResumeTraining(folder / str(bool(extra or seed)), dataset, every=2), *extra]
    history = {}
    with contextlib.suppress(InterruptedError):
        history = model.fit(
            dataset, epochs=2, callbacks=callbacks, shuffle=False, verbose=0
        ).history
    return {name.partition("/")[2]: x for name, x in read_variables(model).items()}, history


def resume(strategy, folder):
    """The names of what is not bit for bit the same after a stop: []."""
    folder = pathlib.Path(folder)
    whole, history = fit(folder, strategy)
    steps = int(next(x for name, x in whole.items() if "iteration" in name)) // 2
    assert steps > 4
    fit(folder, strategy, 0, [Interrupting(steps + 3)])
    resumed, rest = fit(folder, strategy, 1)
    pairs = zip(whole.items(), resumed.values(), strict=True)
    different = [name for (name, one), other in pairs if not np.array_equal(one, other)]
    same = {name: values[1:] for name, values in history.items()} == rest
    return different if same else [*different, "history"]


def graphs(strategy):
    """How many graphs outlive a model that was trained on replicas: 0."""
    from tests.training import test_memory

    test_memory.fit(strategy, clip_norm=1.0)
    before = test_memory.graphs()
    test_memory.fit(strategy, clip_norm=1.0)
    return test_memory.graphs() - before


TASKS = {task.__name__: task for task in (compare, canary, resume, graphs)}

if __name__ == "__main__":
    devices = kt.make_strategy("mirrored", logical_devices=int(sys.argv[1]))
    answers = [TASKS[name](devices, **options) for name, options in json.loads(sys.argv[2])]
    print(json.dumps(answers))
