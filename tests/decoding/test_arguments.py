"""What every search is given: what does not fit together gets one sentence, where it is known."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import beam_search, greedy_search, sample, search
from keras_transformer.presets import SearchConfig
from keras_transformer.special_ids import START
from tests.support.toy_steps import Toy
from tests.support.toy_translator import random_translator

SEARCHES = {
    "greedy": greedy_search,
    "beam of one": lambda *loop, **more: beam_search(*loop, beam_size=1, **more),
    "beam": lambda *loop, **more: beam_search(*loop, beam_size=2, **more),
    "sampling": sample,
    "search": lambda *loop, **more: search(*loop, SearchConfig(beam_size=3), **more),
}
MISTAKES = {
    "no steps": ({"max_length": 0}, "max_length must be at least 1, received 0."),
    "no steps, a tensor": ({"max_length": tf.constant(0)}, "max_length must be at least 1"),
    "rows": ({"batch_size": 3}, "The state has 2 rows, but batch_size is 3: pass the number"),
    "rows, a tensor": ({"batch_size": tf.constant(1)}, "has 2 rows, but batch_size is 1: pass"),
    "prefix's rows": ({"prefix": [[5], [6], [7]]}, "prefix has 3 rows, but batch_size is 2"),
    "prefix's rank": (
        {"prefix": [5, 6]},
        r"The prefix must be integer ids of shape \(B, P\), received int32 of shape \(2,\).",
    ),
    "prefix's type": ({"prefix": [[5.7], [6.0]]}, r"received float32 of shape \(2, 1\)."),
    "ragged": ({"prefix": tf.ragged.constant([[5], [6, 7]])}, "The prefix is ragged: pad it"),
    "long": ({"prefix": np.ones((2, 6), int)}, "prefix is 6 tokens wide, but max_length is 5"),
    "negative": ({"prefix": [[5], [-1]]}, "The prefix holds ids from -1 to 5, but the vocabulary"),
    "no id": ({"prefix": [[8], [0]]}, "ids from 0 to 8, but the vocabulary has ids from 0 to 7"),
}


@pytest.mark.parametrize("how", SEARCHES)
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, how):
    step, (given, message) = Toy(2, 8, 0), MISTAKES[name]
    loop = {"batch_size": 2, "max_length": 5} | given
    arguments = step, step.state, loop.pop("batch_size"), loop.pop("max_length")
    with pytest.raises(ValueError, match=message):
        SEARCHES[how](*arguments, **loop)


@pytest.mark.parametrize("how", ["greedy", "beam"])
def test_mistakes_are_found_as_a_graph_is_traced(how):
    step = Toy(2, 8, 0)

    def trace(*shape):
        def decode(prefix):
            return SEARCHES[how](step, step.state, 2, 5, prefix=prefix)[0]

        spec = tf.TensorSpec(shape, tf.int32)
        return tf.function(decode, autograph=False).get_concrete_function(spec)

    assert trace(None, None)
    for shape, message in [((3, 1), "3 rows"), ((2, 6), "6 tokens wide"), ((2,), "shape (2,)")]:
        with pytest.raises(ValueError) as raised:
            trace(*shape)
        assert message in str(raised.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"beam_size": 0}, "beam_size must be at least 1, received 0"),
        ({"beam_size": 9}, "A beam of 9 is wider than the vocabulary of 8 ids"),
        ({"length_penalty": -0.1}, "length_penalty must be .* received -0.1"),
        ({"beam_patience": 0.5}, "beam_patience must be at least 1"),
    ],
)
def test_mistakes_of_a_beam(options, message):
    step = Toy(2, 8, 0)
    with pytest.raises(ValueError, match=message):
        beam_search(step, step.state, 2, 5, **({"beam_size": 2} | options))


# Room, with a model.


@pytest.fixture(scope="module")
def model():
    return random_translator().model


@pytest.mark.parametrize("how", ["greedy", "beam"])
def test_a_state_with_too_little_room(model, how):
    source = np.array([[5, 6, 7], [8, 9, 0]])
    state, step = model.initial_state(source, length=3), model.make_step("xla")
    message = "room for 3 positions, but max_length is 4: create the state with length=4"
    with pytest.raises(ValueError, match=message):
        SEARCHES[how](step, state, 2, 4, fixed_shapes=True)

    @tf.function(jit_compile=True, autograph=False)
    def decode(source, max_length):
        state = model.initial_state(source, length=3)
        return SEARCHES[how](step, state, tf.shape(source)[0], max_length, fixed_shapes=True)[0]

    source = tf.TensorSpec([None, 3], tf.int32)
    with pytest.raises(ValueError, match=message):
        decode.get_concrete_function(source, 4)
    assert decode.get_concrete_function(source, 3)


def test_a_step_beyond_the_room(model):
    state, step = model.initial_state(np.array([[5, 6, 7]]), length=3), model.make_step()
    for position in (3, np.int64(7), -1):
        message = f"received {position}: create the state with a larger length"
        with pytest.raises(ValueError, match=message):
            step(np.array([START]), position, state)
    step(np.array([START]), 2, state)
    # Of a tensor nothing is known in a graph, and no server gets an operation that asserts.
    decode = tf.function(lambda position: step(np.array([START]), position, state)[0])
    graph = decode.get_concrete_function(tf.TensorSpec([], tf.int32)).graph
    assert not [op.name for op in graph.get_operations() if op.type == "Assert"]
    with pytest.raises(ValueError, match="received 3: create the state"):
        step(np.array([START]), tf.constant(3), state)
    compiled = tf.function(
        lambda position: step(np.array([START]), position, state)[0], jit_compile=True
    )
    assert np.isnan(compiled(tf.constant(3))).all() and np.isfinite(compiled(tf.constant(2))).all()
