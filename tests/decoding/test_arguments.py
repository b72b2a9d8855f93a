"""What every search is given: what does not fit together gets one sentence, where it is known."""

import functools

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
    "less than no steps": ({"max_length": -1}, "max_length must be at least 1, received -1"),
    "rows": (
        {"batch_size": 3},
        r"must hold tensors of shape \(batch_size=3, …\), received shape \(2,\): create it for as",
    ),
    "rows, a tensor": ({"batch_size": tf.constant(1)}, r"batch_size=1, …\), received shape \(2,"),
    "no state": (
        {"state": None},
        r"\(batch_size=2, …\), received shape .*: .* pass \(\) if the step",
    ),
    "a number": (
        {"state": {"n": tf.constant(7)}},
        r"batch_size=2, …\), received shape \(\): create",
    ),
    "prefix's rows": (
        {"prefix": [[5], [6], [7]]},
        r"batch_size=2, .* received int32 of shape \(3, 1",
    ),
    "prefix's rank": (
        {"prefix": [5, 6]},
        r"The prefix must be integer ids of shape \(batch_size=2, at most max_length=5\), received "
        r"int32 of shape \(2,\).",
    ),
    "prefix's type": ({"prefix": [[5.7], [6.0]]}, r"received float32 of shape \(2, 1\)."),
    "ragged": ({"prefix": tf.ragged.constant([[5], [6] * 6])}, "received int32 of shape .2, 6"),
    "long": ({"prefix": np.ones((2, 6), int)}, r"max_length=5\), received int64 of shape \(2, 6\)"),
    "negative": ({"prefix": [[5], [-1]]}, "The prefix holds ids from -1 to 5, but the vocabulary"),
    "no id": ({"prefix": [[8], [0]]}, "ids from 0 to 8, but the vocabulary has ids from 0 to 7"),
}


@pytest.mark.parametrize("how", SEARCHES)
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, how):
    step, (given, message) = Toy(2, 8, 0), MISTAKES[name]
    loop = {"state": step.state, "batch_size": 2, "max_length": 5} | given
    with pytest.raises(ValueError, match=message):
        SEARCHES[how](
            step, loop.pop("state"), loop.pop("batch_size"), loop.pop("max_length"), **loop
        )


@pytest.mark.parametrize("how", SEARCHES)
def test_logits_of_another_rank(how):
    def step(ids, position, state):
        return tf.zeros([tf.size(ids), 1, 8]), state

    message = r"must return logits \(B, V\), received shape \(\d, 1, 8\)"
    with pytest.raises(ValueError, match=message):
        SEARCHES[how](step, (), 2, 5)


@pytest.mark.parametrize("how", ["greedy", "sampling", "beam"])
def test_sizes_of_any_integer_type(how):
    """As `nrows` and `row_lengths` return them, and NumPy's; eagerly, traced and by XLA."""
    step = Toy(2, 8, 0)
    expected = [x.numpy().tolist() for x in SEARCHES[how](step, step.state, 2, 5)]

    def decode(rows, steps):
        return SEARCHES[how](step, step.state, rows, steps)

    wide, narrow = (functools.partial(tf.constant, dtype=dtype) for dtype in ("int64", "int32"))
    for sizes in ((wide(2), wide(5)), (narrow(2), wide(5)), (np.int64(2), np.int64(5))):
        assert [x.numpy().tolist() for x in decode(*sizes)] == expected
    graph = tf.function(decode, autograph=False)
    assert [x.numpy().tolist() for x in graph(wide(2), wide(5))] == expected

    @tf.function(autograph=False, jit_compile=True)
    def compiled(logits):
        def step(ids, position, state):
            return tf.gather(logits, ids), state

        return SEARCHES[how](step, (), wide(2), narrow(5), fixed_shapes=True)

    assert compiled(tf.one_hot(tf.fill([8], 5), 8))[0].shape[-1] == 5


def test_a_ragged_prefix_is_padded():
    step = Toy(2, 8, 0)
    for decode in SEARCHES.values():
        ragged = decode(step, step.state, 2, 5, prefix=tf.ragged.constant([[5], [6, 7]]))
        padded = decode(step, step.state, 2, 5, prefix=[[5, 0], [6, 7]])
        assert [x.numpy().tolist() for x in ragged] == [x.numpy().tolist() for x in padded]


@pytest.mark.parametrize("how", ["greedy", "beam"])
def test_names_of_entries_are_free(how):
    """A state of the user's own with "positions" of whatever shape."""
    toy = Toy(2, 8, 0)
    state = toy.state | {"positions": tf.zeros([2, 3])}
    found = [SEARCHES[how](toy, given, 2, 5)[0].numpy().tolist() for given in (state, toy.state)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": [1.0, -1.0]}, "temperature must be a number above 0, received -1.0"),
        ({"temperature": tf.constant([0.0, 1.0])}, "temperature must be .* received 0.0"),
        ({"temperature": np.float32(0)}, "temperature must be .* received 0.0"),
        ({"temperature": np.array([np.nan, 1.0])}, "temperature must be .* received nan"),
        ({"temperature": tf.constant(np.inf)}, "temperature must be .* received inf"),
        ({"top_k": tf.constant([5, -2])}, "top_k must be at least 0, received -2"),
        ({"top_p": np.array([0.5, 1.5])}, "top_p must be above 0 and at most 1, received 1.5"),
        ({"top_p": [[0.5], [0.0]]}, "top_p must be above 0 and at most 1, received 0.0"),
        ({"top_p": [0.5] * 3}, r"top_p must be a number or .* received shape \(3,\)"),
        ({"seed": [1, 2, 3]}, r"seed must be a number or of shape \(batch_size=2,\), received"),
    ],
)
def test_mistakes_of_sampling(options, message):
    step = Toy(2, 8, 0)
    with pytest.raises(ValueError, match=message):
        sample(step, step.state, 2, 5, **options)
    with pytest.raises(ValueError, match=message):  # constants are known as a graph is traced
        tf.function(lambda: sample(step, step.state, 2, 5, **options), autograph=False)()


def test_a_configuration_has_numbers():
    """One for each row is for `sample`."""
    step = Toy(2, 8, 0)
    for value in (np.array([1.0, 0.5]), tf.constant([1.0, 0.5])):
        with pytest.raises(ValueError, match="temperature must be a number above 0, received"):
            search(step, step.state, 2, 5, sample=True, temperature=value)


@pytest.mark.parametrize("how", ["greedy", "beam"])
def test_mistakes_are_found_as_a_graph_is_traced(how):
    step = Toy(2, 8, 0)

    def trace(*shape):
        def decode(prefix):
            return SEARCHES[how](step, step.state, 2, 5, prefix=prefix)[0]

        spec = tf.TensorSpec(shape, tf.int32)
        return tf.function(decode, autograph=False).get_concrete_function(spec)

    assert trace(None, None)
    for shape in [(3, 1), (2, 6), (2,)]:
        with pytest.raises(ValueError) as raised:
            trace(*shape)
        assert f"received int32 of shape {shape}" in str(raised.value)


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
    message = "has length=3, but max_length is 4"
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
