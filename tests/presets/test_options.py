"""Fields of all configurations: a value that is not allowed is refused, by one sentence."""

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.presets import options, resolve_search

FIELDS = [
    (kind, field)
    for kind in (kt.ExportConfig, kt.ModelConfig, kt.PrepareConfig, kt.SearchConfig, kt.TrainConfig)
    for field in dataclasses.fields(kind)
    if field.metadata.get("allowed")
]


@given(st.sampled_from(FIELDS), st.integers(-3, 3) | st.integers() | st.floats() | st.text())
def test_what_is_not_allowed_is_refused(kind_and_field, value):
    kind, field = kind_and_field
    allowed = field.metadata["allowed"]
    if isinstance(allowed, options.Range):
        assume(isinstance(value, str) or not allowed.contains(value))
        expected = allowed.expected
    else:
        expected = f"one of {', '.join(allowed)}"
    needed = {"train_source": "text"} if kind is kt.PrepareConfig else {}
    with pytest.raises(ValueError) as raised:
        kind(**needed, **{field.name: (value,) if field.name == "freeze" else value})
    assert str(raised.value) == f"{field.name} must be {expected}, received {value!r}."


def test_ends_of_the_ranges():
    for allowed, least, below in (
        (options.COUNT, 1, 0),
        (options.SHARE, 0.0, -1e-9),
        (options.FROM_0, 0, -1),
        (options.ABOVE_0, 1e-9, 0.0),
        (options.POSITIVE, 1e-9, 0.0),
        (options.NOT_NEGATIVE, 0.0, -1e-9),
        (options.SEED, 0, -1),
    ):
        assert allowed.contains(least) and not allowed.contains(below)
        finite = allowed in (options.POSITIVE, options.NOT_NEGATIVE, options.SHARE, options.SEED)
        assert not allowed.contains(math.nan) and not (finite and allowed.contains(math.inf))


def resolve(**values):
    return resolve_search(None, values)


def test_by_hand():
    for kind, values, message in (
        (kt.SearchConfig, {"temperature": 2.0}, "temperature needs sample: set that, or leave"),
        (kt.SearchConfig, {"beam_size": 4, "sample": True}, "beam_size must be 1 with sample, rec"),
        (kt.SearchConfig, {"beam_size": 5.0}, "beam_size must be an integer, received 5.0"),
        (kt.SearchConfig, {"length_penalty": None}, "length_penalty must be a number of at"),
        (kt.SearchConfig, {"logits_processors": abs}, "must be a list of functions, received <bui"),
        (resolve, {"beam_patience": 2.0}, "beam_patience needs a beam_size above 1: set that"),
        (kt.ModelConfig, {"output_bias": True, "share_embeddings": "none"}, 'received "none"'),
        (kt.ModelConfig, {"first_position": 1, "positions": "learned"}, "='learned': leave"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**values)
    assert kt.SearchConfig(logits_processors=[abs]).logits_processors == (abs,)
