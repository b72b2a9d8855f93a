"""What must hold for every way to say where a token is, in both stacks: passes, steps, searches."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.layer_harness import (
    NORMS,
    SOURCE,
    SOURCE_VOCABULARY,
    TOLERANCES,
    assert_close,
    normal,
    symbols,
    to_numpy,
    transformer,
)

# Sequences are longer than max_length, and than the distances that are told apart.
OPTIONS = {
    "relative": {"max_distance": 3},
    "bucketed": {"max_distance": 17},
    "rotary": {},
    "disentangled": {"max_distance": 3},
    "none": {},
}
LONG = 21
VOCABULARY = SOURCE_VOCABULARY
RANDOM = np.random.default_rng(3)
LONG_SOURCE = RANDOM.integers(4, VOCABULARY, (2, LONG), "int32")
LONG_SOURCE[1, 12:] = 0
LONG_TARGET = RANDOM.integers(4, VOCABULARY, (2, LONG), "int32")
# What attention knows of positions does not depend on the norm: each scheme with one of them.
every = pytest.mark.parametrize(("positions", "norm"), list(zip(OPTIONS, 3 * NORMS, strict=False)))
each = pytest.mark.parametrize("positions", OPTIONS)


@functools.cache  # nothing in here changes a model's weights
def model(positions, norm="post", policy="float32", layers=2):
    """A model whose tables of positions have entries of deviation 1."""
    how = dict(share_embeddings="all", dtype=policy, num_layers=layers)
    made = transformer(norm, positions=positions, **how, **OPTIONS[positions])
    made.build()
    random = np.random.default_rng(1)
    for weight in made.weights:
        own = any(part in weight.path for part in ("relative_", "biases", "distances"))
        scale = 1.0 if own else 0.5 if weight.path.endswith("embeddings") else 8**-0.5
        mean = float(weight.name == "gamma")
        weight.assign(random.normal(mean, scale, weight.shape))
    return made


def full(made, source=LONG_SOURCE, target=LONG_TARGET):
    return to_numpy(made((source, target)))


def steps(made, length=None, source=LONG_SOURCE, target=LONG_TARGET):
    """The same logits, one position after the other."""
    state, step, logits = made.initial_state(source, length), made.make_step(), []

    @functools.partial(tf.function, reduce_retracing=True)
    def traced(ids, position, state):
        return step(ids, position, state)

    for position in range(target.shape[1]):
        now = traced if length else step  # with room for all, shapes stay and one graph does
        found, state = now(target[:, position], tf.constant(position), state)
        logits.append(found)
    return np.stack(to_numpy(logits), axis=1)


@every
def test_step_by_step_equals_the_full_pass(positions, norm):
    made = model(positions, norm)
    expected = full(made)
    assert expected.std() > 0.3
    assert_close(steps(made), expected)
    assert_close(steps(made, LONG + 4), expected)


HALF = [(positions, "mixed_bfloat16") for positions in OPTIONS]


@pytest.mark.parametrize(("positions", "policy"), [*HALF, ("relative", "mixed_float16")])
def test_half_precision(positions, policy):
    """Steps, and nearness to single precision; each layer rounds anew."""
    made, tolerance = model(positions, "pre", policy), 4 * TOLERANCES[policy]
    assert_close(steps(made, LONG), full(made), tolerance)
    scale = full(model(positions, "pre")).std()
    assert np.abs(full(made) - full(model(positions, "pre"))).mean() < tolerance * scale


def padded(array):
    return np.pad(array, ((0, 0), (0, 5)))


@every
def test_padding_changes_nothing(positions, norm):
    made = model(positions, norm)
    longer = full(made, padded(LONG_SOURCE), padded(LONG_TARGET))
    assert_close(longer[:, :LONG], full(made))
    alone = full(made, LONG_SOURCE[1:, :12], LONG_TARGET[1:])
    assert_close(alone, full(made)[1:])


@each
def test_nothing_at_all(positions):
    """No sentence, none with a token, none with a target: known at once, or in the graph only."""
    made = model(positions)
    ids = tf.TensorSpec([None, None], "int32")
    traced = tf.function(lambda source, target: made((source, target)), input_signature=[ids] * 2)
    for rows, source, target in ((0, 0, 0), (2, 0, 0), (2, 0, 3), (2, 3, 0), (0, 2, 2), (2, 1, 1)):
        inputs = np.full((rows, source), 5, "int32"), np.full((rows, target), 5, "int32")
        expected = made(inputs)
        assert expected.shape == (rows, target, VOCABULARY)
        assert_close(traced(*inputs), expected)


@every
def test_no_position_sees_the_future(positions, norm):
    made = model(positions, norm)
    for first in (1, 14):
        changed = LONG_TARGET.copy()
        changed[:, first:] = 4 + (changed[:, first:] - 3) % (VOCABULARY - 4)
        difference = np.abs(full(made, target=changed) - full(made))
        assert not difference[:, :first].any()
        assert difference[:, first:].max() > 0.05


@every
def test_order_counts(positions, norm):
    """Of the source, in the encoder and in what is written; and of what has been written."""
    made = model(positions, norm)
    source, target = LONG_SOURCE[:1], LONG_TARGET[:1]
    backwards = source[:, ::-1]
    memories = to_numpy([made.encode(source), made.encode(backwards)[:, ::-1]])
    written = full(made, source, target), full(made, backwards, target)
    if positions == "none":
        assert_close(memories[0], memories[1])
        assert_close(*written)
        return
    assert np.abs(memories[0] - memories[1]).mean() > 0.05
    assert np.abs(written[0] - written[1]).mean() > 0.002
    # One layer, whose mask hides the future, would take what came before for a set.
    layer, x = made.decoder.layers[0], normal(1, LONG, 8)
    mixed = np.concatenate([x[:, :-1][:, ::-1], x[:, -1:]], axis=1)
    last = [layer(y, x)[:, -1] for y in (x, mixed)]
    assert np.abs(last[0] - last[1]).mean() > 0.005


@each
def test_a_beam_of_one_is_greedy_search(positions):
    made = model(positions)
    state, length = made.initial_state(LONG_SOURCE), 9
    tokens, lengths, log_prob = kt.greedy_search(made.make_step(), state, 2, length)
    assert lengths.shape == (2,)
    for beam in (1, 3):
        found = kt.beam_search(made.make_step(), state, 2, length, beam, length_penalty=0.0)
        if beam == 1:
            np.testing.assert_array_equal(found[0][:, 0], tokens)
            assert_close(found[2][:, 0], log_prob)
    # What greedy search takes is the best of a full pass over what it took before.
    fed = np.concatenate([np.full((2, 1), kt.START), tokens.numpy()[:, :-1]], axis=1)
    best = full(made, target=fed).argmax(axis=-1)
    for row, count in enumerate(lengths.numpy()):
        np.testing.assert_array_equal(best[row, :count], tokens[row, :count])
    # A beam's hypotheses have the probabilities that a full pass gives them.
    (best,), (count,) = found[0][1, :1].numpy(), found[1][1, :1].numpy()
    fed = np.concatenate([[kt.START], best[:-1]])[None]
    logits = tf.nn.log_softmax(full(made, LONG_SOURCE[1:], fed))[0].numpy()
    expected = sum(logits[i, best[i]] for i in range(count))
    assert float(found[2][1, 0]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("positions", ["relative", "rotary"])
def test_search_under_xla(positions):
    """Room for all positions from the start, in one compiled loop."""
    made = model(positions, layers=1)
    expected = kt.greedy_search(made.make_step(), made.initial_state(LONG_SOURCE), 2, LONG)

    @tf.function(jit_compile=True)
    def search(source):
        state = made.initial_state(source, LONG)
        return kt.greedy_search(made.make_step("xla"), state, 2, LONG, fixed_shapes=True)

    tokens, lengths, log_prob = search(LONG_SOURCE)
    np.testing.assert_array_equal(tokens[:, : expected[0].shape[1]], expected[0])
    np.testing.assert_array_equal(lengths, expected[1])
    assert_close(log_prob, expected[2], 1e-4)


@pytest.mark.parametrize("positions", [name for name in OPTIONS if name != "relative"])
def test_nothing_is_added_to_what_is_written(positions):
    """Of one token again and again all values are equal, however they are weighted."""
    made = model(positions)
    logits = full(made, target=np.full((2, LONG), 5))
    assert_close(logits, np.repeat(logits[:, :1], LONG, axis=1), 1e-4)
    assert np.ptp(logits[:, 0], axis=0).max() > 0.01  # and the sources do count


# What is stored.


@each
def test_layers_share_what_is_the_stacks(positions):
    made = model(positions)
    layers = [*made.encoder.layers, *made.decoder.layers]
    schemes = [layer.self_attention.positions for layer in layers]
    assert all(layer.cross_attention.positions is None for layer in made.decoder.layers)
    parts = "positions", "position_", "distances"
    tables = [weight for weight in made.weights if any(part in weight.path for part in parts)]
    counts = {"relative": 8, "bucketed": 2, "disentangled": 2 + 3 * 4}
    assert len(tables) == counts.get(positions, 0)
    if positions == "bucketed":
        assert [scheme.bidirectional for scheme in schemes] == [True, True, False, False]


def test_weights_of_other_positions_are_refused(tmp_path):
    """Also where both have the same weights, or none: nothing else would tell them apart."""
    names = ["sinusoidal", "rotary", "relative", "learned", "none"]
    models = [transformer(positions=positions, num_layers=1) for positions in names]
    for made, other in zip(models, models[1:] + models[:1], strict=True):
        made.save_weights(tmp_path / "of.weights.h5")
        made.load_weights(tmp_path / "of.weights.h5")
        with pytest.raises(ValueError, match=f"this model has positions={other.positions!r}"):
            other.load_weights(tmp_path / "of.weights.h5")


@pytest.mark.parametrize("name", ["Encoder", "Decoder"])
@pytest.mark.parametrize("positions", ["relative", "bucketed", "rotary", "disentangled"])
def test_a_stack_alone(name, positions, tmp_path):
    """In someone else's functional model, for any lengths, with one object for all layers."""
    arrays = {"x": RANDOM.normal(size=(2, 7, 8)).astype("float32")}
    if name == "Decoder":
        arrays["memory"] = RANDOM.normal(size=(2, 5, 8)).astype("float32")
    own = {"relative": kt.RelativePositions, "bucketed": kt.BucketedPositions}
    given = own.get(positions, lambda: positions)()
    stack = getattr(kt, name)(2, 8, 2, 16, positions=given)
    inputs = symbols(arrays, known=0)
    whole = keras.Model(inputs, stack(**inputs))
    expected = whole(arrays)
    assert_close(stack(**arrays), expected)
    whole.save(tmp_path / "stack.keras")
    assert_close(keras.saving.load_model(tmp_path / "stack.keras")(arrays), expected)


def test_gradients_reach_every_table():
    for positions in ("relative", "bucketed", "disentangled"):
        made = model(positions)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made((SOURCE, SOURCE)) ** 2)
        for weight, gradient in zip(
            made.trainable_weights, tape.gradient(loss, made.trainable_variables), strict=True
        ):
            assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, weight.path
