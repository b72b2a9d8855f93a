"""Masked accuracy, by hand."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

IDS = np.array([[1, 2, 0, 0], [2, 1, 1, 0]])
BEST = np.array([[1, 1, 0, 2], [2, 1, 0, 0]])  # right: 1 of 2, and 2 of 3
LOGITS = np.eye(3, dtype="float32")[BEST]


def test_by_hand():
    metric = kt.MaskedAccuracy()
    assert float(metric(IDS, LOGITS)) == pytest.approx(3 / 5)
    metric.update_state(IDS[:1], LOGITS[:1])  # all tokens seen so far count alike
    assert float(metric.result()) == pytest.approx(4 / 7)
    metric.reset_state()
    metric.update_state(IDS[1:], LOGITS[1:])
    assert float(metric.result()) == pytest.approx(2 / 3)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_labels_of_any_type(dtype):
    assert float(kt.MaskedAccuracy()(IDS.astype(dtype), LOGITS)) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (np.array([1.0, 3.0]), (1 + 3 * 2) / (2 + 3 * 3)),
        (np.array([[4.0, 1, 9, 9], [1, 1, 0, 9]]), (4 + 2) / (5 + 2)),
    ],
    ids=["per row", "per token"],
)
def test_sample_weight(weight, expected):
    assert float(kt.MaskedAccuracy()(IDS, LOGITS, weight)) == pytest.approx(expected)


def test_padding_only():
    assert float(kt.MaskedAccuracy()(np.zeros_like(IDS), LOGITS)) == 0


def test_configuration_round_trip():
    metric = kt.MaskedAccuracy(name="own")
    twin = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert isinstance(twin, kt.MaskedAccuracy)
    assert twin.get_config() == metric.get_config()
    assert twin.name == "own"
    assert float(twin(IDS, LOGITS)) == pytest.approx(3 / 5)
