"""Masks, against matrices written out by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt


def assert_mask(mask, expected):
    mask = keras.ops.convert_to_numpy(mask)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, np.array(expected, bool))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint16"])
def test_padding_mask(dtype):
    assert_mask(
        kt.padding_mask(np.array([[2, 7, 3], [1, 0, 0], [0, 0, 0]], dtype)),
        [[1, 1, 1], [1, 0, 0], [0, 0, 0]],
    )


@pytest.mark.parametrize("number", [int, tf.constant])
def test_causal_mask(number):
    assert_mask(kt.causal_mask(number(3)), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert_mask(kt.causal_mask(number(2), number(4)), [[1, 0, 0, 0], [1, 1, 0, 0]])


def test_combine():
    rows = np.array([[1, 1, 0], [1, 0, 0]])  # numbers count as True where they are not 0
    columns = np.array([[True], [False]])
    assert_mask(kt.combine(rows, None, columns), [[1, 1, 0], [0, 0, 0]])
    assert_mask(kt.combine(rows), rows)
    assert kt.combine() is None
    assert kt.combine(None, None) is None


def test_key_mask():
    mask = np.array([[1, 0], [1, 1], [0, 0]], bool)
    assert_mask(kt.key_mask(mask), mask[:, None, None, :])
    assert kt.key_mask(None) is None
