"""Arguments of a training that are out of range or would not do what they say."""

import math

import keras
import pytest

import keras_transformer as kt
from tests.training.test_gradients import Small, batch

(_, X), Y = batch(5)
LOSS = kt.SmoothedCrossEntropy()
SPARSE = keras.losses.SparseCategoricalCrossentropy()
schedule = kt.WarmupInverseSqrt
PROBABILITIES = "The model returns logits, .*: compile with SmoothedCrossEntropy"


def compiled(loss=LOSS, **options):
    model = Small()
    model.compile("sgd", loss, **options)
    return model


def transformer(loss=LOSS, **options):
    sizes = dict(num_layers=1, d_model=8, num_heads=2, d_ff=16)
    kt.Transformer(9, 9, **sizes).compile("sgd", loss, **options)


MISTAKES = [
    (lambda: schedule(), "Name d_model or peak, received d_model=None and peak=None"),
    (lambda: schedule(512, 4000), "Name d_model or peak, .*peak=4000"),
    (lambda: schedule(d_model=8, warmup_steps=0), "warmup_steps must be at least 1, received 0"),
    (lambda: schedule(d_model=1e-3), "d_model must be at least 1, received 0.001"),
    (lambda: schedule(peak=math.nan), "peak must be a number above 0, received nan"),
    (lambda: schedule(peak=1, cooldown_steps=2), "in 0 … total_steps=None, received 2"),
    (lambda: schedule(peak=1, cooldown_steps=2, total_steps=1), "total_steps=1, received 2"),
    (lambda: schedule(peak=1, cooldown_steps=-1, total_steps=1), "received -1"),
    (lambda: kt.EMAAdam(use_ema=True, ema_momentum=2.0), "ema_momentum"),
    (lambda: kt.SmoothedCrossEntropy(-0.1), "label_smoothing must be .*received -0.1"),
    (lambda: kt.SmoothedCrossEntropy(1), "label_smoothing must be .*received 1"),
    (lambda: compiled(clip_norm=0.0), "clip_norm must be above 0"),
    (lambda: compiled(clip_norm="1"), "clip_norm must be above 0, received '1'"),
    (lambda: compiled(accumulation_steps=2.0), "accumulation_steps must be a positive integer"),
    (lambda: compiled(rdrop=math.nan), "rdrop must be a number of at least 0, received nan"),
    (lambda: compiled(fused_loss="yes"), 'fused_loss must be "auto", True or False'),
    # Keras would weigh each sentence by the position of its largest id.
    (lambda: compiled().fit(X, Y, class_weight={1: 2.0}), "class_weight .*: pass sample_weight"),
    (lambda: compiled().train_on_batch(X, Y, class_weight={1: 2.0}), "pass sample_weight"),
    (lambda: transformer("sparse_categorical_crossentropy"), PROBABILITIES),
    (lambda: transformer(keras.losses.sparse_categorical_crossentropy), PROBABILITIES),
    (lambda: transformer(SPARSE), PROBABILITIES),
    (lambda: transformer(["crossentropy"]), PROBABILITIES),
    (lambda: transformer(metrics="sparse_categorical_crossentropy"), PROBABILITIES),
    (lambda: transformer(metrics=["crossentropy"]), PROBABILITIES),
]


@pytest.mark.parametrize("mistake, message", MISTAKES)
def test_mistakes(mistake, message):
    with pytest.raises(ValueError, match=message):
        mistake()


def test_losses_of_logits_are_accepted():
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    transformer(logits, metrics=["sparse_categorical_accuracy"])
