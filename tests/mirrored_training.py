"""Trains one small model on one or two replicas and prints what came out, as JSON.

    python tests/mirrored_training.py one|mirrored [plain|options]

With "options": gradients accumulated over parts and clipped, weight decay, the recipe's optimizer
with its running mean.

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

OPTIONS = dict(use_ema=True, ema_momentum=0.9, weight_decay=0.01)


def batches():
    """Ten batches of bucketed lengths: even, odd and, at last, a single row."""
    random = np.random.default_rng(5)
    for rows, source_length, target_length in [
        *[(8, 6, 5), (7, 9, 4), (5, 6, 5), (8, 9, 4), (3, 12, 8)],
        *[(8, 6, 5), (6, 9, 4), (7, 12, 8), (8, 6, 5), (1, 9, 7)],
    ]:
        source = random.integers(4, 20, (rows, source_length))
        target = random.integers(4, 20, (rows, target_length))
        for row in range(rows):  # halves with different numbers of tokens
            target[row, random.integers(1, target_length + 1) :] = kt.PAD
            source[row, random.integers(2, source_length + 1) :] = kt.PAD
        target_in = np.concatenate([np.full((rows, 1), kt.START), target[:, :-1]], axis=1)
        yield (source.astype("int32"), target_in.astype("int32")), target.astype("int32")


def dataset():
    """The batches as make_dataset would hand them on: (B, S), (B, T), (B, T)."""
    ids = tf.TensorSpec([None, None], tf.int32)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=((ids, ids), ids))
    return dataset.apply(tf.data.experimental.assert_cardinality(10))


def main(name, options):
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = 2 if name == "mirrored" else 1
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * devices
    )
    keras.utils.set_random_seed(3)
    strategy = kt.make_strategy(name)
    with strategy.scope():
        model = kt.Transformer(20, 20, 2, 16, 2, 32, dropout=0.0, share_embeddings="target")
        model.build()
        if options:
            model.accumulation_steps, model.clip_norm = 2, 0.5
        # Plain momentum, or so large an epsilon that Adam comes near it: otherwise Adam would blow
        # up rounding errors of gradients near zero.
        optimizer = (
            kt.MeanAdam(0.05, epsilon=1.0, **OPTIONS)
            if options
            else keras.optimizers.SGD(0.05, momentum=0.9)
        )
        model.compile(
            optimizer,
            kt.SmoothedCrossEntropy(0.1),
            metrics=[kt.MaskedAccuracy()],
            jit_compile=False,
        )
    history = model.fit(
        dataset(), validation_data=dataset(), epochs=1, shuffle=False, verbose=0
    ).history
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    print(
        json.dumps(
            {
                "replicas": strategy.num_replicas_in_sync,
                "history": history,
                "steps": int(model.optimizer.iterations.numpy()),
                "weights": weights.tolist(),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["options"])
