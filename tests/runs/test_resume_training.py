"""A `fit` that was interrupted anywhere comes, in a fresh model, to what it would have come to."""

import json
import time

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.text_files import read_pairs
from tests.support.command_line import python
from tests.support.paths import SUPPORT
from tests.support.reversed_text import write_corpus


class Interrupted(Exception):
    """The process is killed."""


class Interrupting(keras.callbacks.Callback):
    """Kills the training after so many updates, or in the validation after so many epochs."""

    def __init__(self, update=None, epoch=None):
        super().__init__()
        self.left, self.epoch = update, epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise Interrupted

    def on_test_end(self, logs=None):
        if self.epoch is not None:
            self.epoch -= 1
            if not self.epoch:
                raise Interrupted


class Logs(keras.callbacks.Callback):
    """Keeps what callbacks see: each update's logs, and each epoch's."""

    def __init__(self):
        super().__init__()
        self.updates, self.epochs = {}, {}

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.updates[self._epoch, batch] = dict(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[epoch] = dict(logs)


@keras.saving.register_keras_serializable("tests")
class Own(keras.Model):
    """A user's own model of Keras' layers, which is built by its first batch."""

    def __init__(self, size, width, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(size, width)
        self.dropout = keras.layers.Dropout(0.3)
        self.normalization = keras.layers.BatchNormalization()
        self.dense = keras.layers.Dense(size)

    def call(self, inputs, training=None):
        source, target = inputs
        context = keras.ops.mean(self.embedding(source), axis=1, keepdims=True)
        x = self.dropout(self.embedding(target) + context, training=training)
        return self.dense(self.normalization(x, training=training))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    pairs = read_pairs(*write_corpus(tmp_path_factory.mktemp("text"), 90, 3))
    lines = [line for pair in pairs for line in pair]
    return pairs, kt.SubwordTokenizer.train(lines, 290)


def own_model(tokenizer, width=6, **options):
    model = Own(tokenizer.vocabulary_size, width)
    optimizer = keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.02, 30), use_ema=True, ema_momentum=0.8
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False, **options)
    return model


def fit(path, text, make_model, seed=0, every=4, extra=(), saved=(), data=None, **options):
    """What a script does, with random numbers of its own: model, logs of updates and epochs."""
    keras.utils.set_random_seed(1000 + seed)
    pairs, tokenizer = text
    model = make_model(tokenizer)
    dataset = kt.make_dataset(
        pairs, tokenizer, tokenizer, tokens_per_batch=128, max_length=24, seed=5, **(data or {})
    )
    resume = kt.ResumeTraining(path, dataset, every=every, callbacks=saved)
    logs = Logs()
    valid = kt.make_dataset(pairs[:9], tokenizer, tokenizer, 128, 24, shuffle=False)
    options = dict(epochs=3, validation_data=valid, verbose=0) | options
    try:
        model.fit(dataset, callbacks=[*saved, logs, resume, *extra], shuffle=False, **options)
    except Interrupted:
        return model, None
    return model, logs


def state_of(model):
    return [np.array(v) for v in (*model.variables, *model.optimizer.variables)]


def assert_same(one, other):
    """Weights, random states and optimizer bit for bit; and the logs of what both have seen."""
    (model, logs), (whole, whole_logs) = one, other
    for a, b in zip(state_of(model), state_of(whole), strict=True):
        np.testing.assert_array_equal(a, b)
    assert logs.epochs and logs.epochs.items() <= whole_logs.epochs.items()


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """Three epochs of the user's own model without a stop."""
    path = tmp_path_factory.mktemp("whole") / "points"
    model, logs = fit(path, text, own_model)
    steps = len(logs.updates) // 3
    assert steps > 6
    return model, logs, steps


@pytest.mark.parametrize("stop", ["before the first point", "within", "last", "validation"])
def test_a_model_of_ones_own(whole, text, tmp_path, stop):
    """Also where all updates of an epoch had been done, but not its validation."""
    *expected, steps = whole
    when = {
        "before the first point": dict(update=3),
        "within": dict(update=steps + 6),
        "last": dict(update=steps),
        "validation": dict(epoch=2),
    }
    every = steps if stop in ("last", "validation") else 4
    assert fit(tmp_path, text, own_model, 0, every, [Interrupting(**when[stop])])[1] is None
    # Where nothing was saved, the script draws the weights that it drew before.
    resumed = fit(tmp_path, text, own_model, 0 if stop == "before the first point" else 2, every)
    assert_same(resumed, expected)
    first = {"before the first point": 0, "within": 1, "last": 0, "validation": 1}[stop]
    assert min(resumed[1].epochs) == first
    logs, expected_logs = resumed[1].updates, expected[1].updates
    done = {"within": 4 * ((steps + 6) // 4) - steps}.get(stop, every)
    if stop == "before the first point":
        done = 0
    for (epoch, batch), values in logs.items():
        passed = epoch == first and batch < done
        at = (epoch, done - 1) if passed else (epoch, batch)
        assert values == expected_logs[at]


def test_again_and_again_and_after_the_end(whole, text, tmp_path):
    *expected, steps = whole
    for seed, update in enumerate((5, steps, 2 * steps)):
        assert fit(tmp_path, text, own_model, seed, 4, [Interrupting(update)])[1] is None
    assert_same(fit(tmp_path, text, own_model, 8), expected)
    model, logs = fit(tmp_path, text, own_model, 9)
    assert not logs.updates
    for a, b in zip(state_of(model), state_of(expected[0]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "data, options, compiled",
    [
        ({"repeat": True}, {"steps_per_epoch": 5, "epochs": 6}, {}),
        # Keras makes a new iterator when it has counted the batches of a pass, some epochs.
        ({}, {"steps_per_epoch": "a part of a pass", "epochs": 12}, {}),
        ({}, {}, {"steps_per_execution": 4}),
    ],
    ids=["repeat", "several epochs a pass", "steps per execution"],
)
def test_other_ways_to_fit(text, tmp_path, data, options, compiled):
    if options.get("steps_per_epoch") == "a part of a pass":
        pairs, tokenizer = text
        count = len(kt.make_dataset(pairs, tokenizer, tokenizer, 128, 24, seed=5))
        part = next(number for number in range(2, count + 1) if not count % number)
        assert 6 < count < 12 * part, "the interruption comes before the end of a pass"
        options = options | {"steps_per_epoch": part}

    def make_model(tokenizer):
        return own_model(tokenizer, **compiled)

    expected = fit(tmp_path / "whole", text, make_model, data=data, **options)
    update = 6 if not compiled.get("steps_per_execution") else 3  # calls
    extra = [Interrupting(update)]
    stopped = fit(tmp_path / "one", text, make_model, 0, 2, extra, data=data, **options)
    assert stopped[1] is None
    resumed = fit(tmp_path / "one", text, make_model, 2, 2, data=data, **options)
    assert_same(resumed, expected)


# Other callbacks.


class Memory(keras.callbacks.Callback):
    """Remembers in a way of its own."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append([epoch, logs["loss"]])

    def get_state(self):
        return self.seen

    def set_state(self, state):
        self.seen = state


def test_callbacks_go_on_where_they_were(text, tmp_path):
    """Patience runs out when it would have, and the best weights come back."""

    def run(path, seed, extra=()):
        stopping = keras.callbacks.EarlyStopping(
            "val_loss", mode="max", patience=3, restore_best_weights=True
        )
        memory = Memory()
        model, logs = fit(
            *(path, text, own_model, seed, 4, extra), saved=[stopping, memory], epochs=9
        )
        return model, logs, stopping, memory

    model, logs, stopping, memory = run(tmp_path / "whole", 0)
    assert max(logs.epochs) == stopping.stopped_epoch < 8
    steps = len(logs.updates) // len(logs.epochs)
    assert run(tmp_path / "one", 0, [Interrupting(2 * steps + 3)])[1] is None
    for again in (False, True):
        model_2, logs_2, stopping_2, memory_2 = run(tmp_path / "one", 2 + again)
        assert bool(logs_2.epochs) is not again
        assert memory_2.seen == memory.seen
        assert (stopping_2.best, stopping_2.wait) == (stopping.best, stopping.wait)
        for a, b in zip(model.get_weights(), model_2.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)


# What diverges.


class Spoiling(keras.callbacks.Callback):
    """Makes a row of the embeddings NaN before an update; UNK's is in no batch."""

    def __init__(self, update, token):
        super().__init__()
        self.update, self.token = update, token

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations == self.update - 1:
            values = np.array(self.model.embedding.embeddings)
            values[self.token] = np.nan
            self.model.embedding.embeddings.assign(values)


@pytest.mark.parametrize(
    "update, token, said",
    [
        (
            6,
            kt.START,
            "the gradient norm of step 6 of epoch 1 is not finite.* step 4 of epoch 1",
        ),
        # What was saved after step 6 has come to this loss, and would again.
        (7, kt.START, "step 7 of epoch 1 is not finite.* it resumes from step 4 of epoch 1"),
        (5, kt.UNK, "a weight after step 6 of epoch 1 is not finite.* step 4 of epoch 1"),
    ],
)
def test_nothing_is_saved_of_what_has_diverged(whole, text, tmp_path, update, token, said):
    """Begun again without the fault, the training comes to what it would have come to."""
    *expected, _ = whole
    with pytest.raises(FloatingPointError, match=said):
        fit(tmp_path, text, own_model, 0, 2, [Spoiling(update, token)])
    assert_same(fit(tmp_path, text, own_model, 2, 2), expected)


# What is refused.


def test_what_cannot_go_on(text, tmp_path):
    pairs, tokenizer = text
    fit(tmp_path, text, own_model, epochs=1)
    dataset = kt.make_dataset(pairs, tokenizer, tokenizer, 128, 24)
    with pytest.raises(ValueError, match="dataset must be the result of make_dataset"):
        kt.ResumeTraining(tmp_path, dataset.take(3))
    with pytest.raises(ValueError, match="every must be at least 1 step"):
        kt.ResumeTraining(tmp_path, dataset, every=0)
    stopping = keras.callbacks.EarlyStopping("loss")
    resume = kt.ResumeTraining(tmp_path, dataset, callbacks=[stopping])
    with pytest.raises(ValueError, match="must come after the callbacks that it saves"):
        own_model(tokenizer).fit(dataset, callbacks=[resume, stopping], shuffle=False)
    with pytest.raises(ValueError, match="with the same model, optimizer and strategy"):
        fit(tmp_path, text, lambda tokenizer: own_model(tokenizer, width=5))
    with pytest.raises(ValueError, match="batches per pass to resume"):
        fit(tmp_path, (pairs[:40], tokenizer), own_model)


def test_when_a_point_is_due(text, tmp_path):
    """At multiples of a number; without one, when the last took 2 % of the time since."""
    pairs, tokenizer = text
    dataset = kt.make_dataset(pairs, tokenizer, tokenizer, 128, 24)
    resume = kt.ResumeTraining(tmp_path, dataset, every=7)
    resume._total_steps = 15
    assert resume._is_due(before=13) and not resume._is_due(before=14)
    resume = kt.ResumeTraining(tmp_path, dataset)
    for seconds, ago, due in [(None, 29, False), (None, 31, True), (9, 440, False), (9, 460, True)]:
        resume._save_seconds, resume._saved = seconds, time.monotonic() - ago
        assert resume._is_due(before=0) is due


@pytest.mark.slow
def test_two_replicas_resume_bit_for_bit(tmp_path):
    """With metrics that each counts for itself, and a batch drawn before fit."""
    printed = python(SUPPORT / "mirrored_resume.py", tmp_path)
    assert json.loads(printed.splitlines()[-1]) == []
