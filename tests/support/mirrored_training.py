"""Trains, evaluates and predicts on one device and on replicas; prints what came out, as JSON.

    python tests/support/mirrored_training.py '{"rows": [7, 4, 1], "precision": "float32", ...}'

Options: `rows` of the batches; `precision`; `recipe`, "plain", "options" (gradients accumulated
over parts and clipped, weight decay, the recipe's optimizer with its running mean), "rdrop" or
"weights" (sample weights, which the fused loss does not take); `replicas`, list of numbers, 1 for a
strategy of one device; `built`, whether the model is built by hand. With "canary" instead, what
Keras itself does with an odd batch.

A program of its own, because logical devices must be made before TensorFlow starts.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_transformer as kt  # noqa: E402
from tests.support.two_masks import TwoMasks  # noqa: E402

MOST_REPLICAS = 3
ADAM = dict(epsilon=1.0, use_ema=True, ema_momentum=0.9, weight_decay=0.01)
ROWS = [8, 7, 5, 8, 3, 8, 6, 7, 8, 1]  # even, odd and, at last, a single one


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


def run(replicas, rows, precision, recipe, built):
    """What one number of replicas comes to."""
    keras.utils.set_random_seed(3)
    devices = [f"CPU:{number}" for number in range(replicas)]
    strategy = (
        tf.distribute.MirroredStrategy(devices)
        if replicas > 1
        else tf.distribute.OneDeviceStrategy(devices[0])
    )
    with strategy.scope():
        model_class = TwoMasks if recipe == "rdrop" else kt.Transformer
        model = model_class(
            20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="target", dtype=precision
        )
        if built:
            model.build()
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


def canary(strategy):
    """What Keras' own model says to an odd first batch on two replicas."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        try:
            model.compile("sgd", "mse")
            model.fit(np.ones((3, 2)), np.ones((3, 1)), batch_size=3, verbose=0)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            return str(error)
    return None


def outside(strategy):
    """What ours says to a model that was created outside the scope."""
    model = tagger(kt.TokenTrainer)
    model(np.ones((2, 3)))
    try:
        with strategy.scope():
            model.compile("sgd", "mse")
    except ValueError as error:
        return str(error)


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


def main(options):
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * MOST_REPLICAS
    tf.config.set_logical_device_configuration(cpu, devices)
    if options == "canary":
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # one a process
        print(json.dumps([canary(strategy), outside(strategy), averages(strategy)]))
        return
    options = json.loads(options)
    replicas = options.pop("replicas")
    print(json.dumps([run(number, **options) for number in replicas]))


if __name__ == "__main__":
    main(sys.argv[1])
