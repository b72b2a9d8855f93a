"""A `fit` that was interrupted anywhere comes, in a fresh model, to what it would have come to."""

import contextlib
import functools
import os
import pathlib
import signal
import sys
import tempfile
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.runs.resume_training import save_on_signals
from keras_transformer.runs.training_state import scatter_metrics
from tests.support.layer_harness import assert_equal
from tests.support.reversed_text import write_corpus


class Interrupted(Exception):
    """The process is killed."""


class Interrupting(keras.callbacks.Callback):
    """Kills the training after so many updates, or in the validation after so many epochs."""

    def __init__(self, update=0, epoch=0):
        super().__init__()
        self.updates, self.epochs = update, epoch

    def on_train_batch_end(self, batch, logs=None):
        self.updates -= 1
        if self.updates == 0:
            raise Interrupted

    def on_test_end(self, logs=None):
        self.epochs -= 1
        if self.epochs == 0:
            raise Interrupted


class Logs(keras.callbacks.Callback):
    """Keeps what callbacks see: each update's logs, and each epoch's; its state is the latter."""

    def __init__(self):
        super().__init__()
        self.updates, self.epochs, self.seen, self.ended = {}, {}, [], False

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.updates[self._epoch, batch] = dict(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[epoch] = dict(logs)
        self.seen.append([epoch, logs["loss"]])

    def get_state(self):
        return self.seen

    def set_state(self, state):
        self.seen = state


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


@functools.cache
def corpus():
    with tempfile.TemporaryDirectory() as folder:
        pairs = kt.read_pairs(*write_corpus(pathlib.Path(folder), 90, 3))
    return pairs, kt.SubwordTokenizer.train([line for pair in pairs for line in pair[:2]], 290)


def dataset_of(pairs, **options):
    return kt.make_dataset(pairs, *[corpus()[1]] * 2, 128, 24, **options)


def fit(path, seed, extra=(), every=4, saved=(), rows=90, width=6, order=5, executed=1, **options):
    """What a script does, with random numbers of its own: model, logs of updates and epochs."""
    keras.utils.set_random_seed(1000 + seed)
    pairs, tokenizer = corpus()
    model = Own(tokenizer.vocabulary_size, width)
    schedule = keras.optimizers.schedules.CosineDecay(0.02, 30)
    optimizer = keras.optimizers.Adam(schedule, use_ema=True, ema_momentum=0.8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    how = dict(metrics=["accuracy"], jit_compile=False, steps_per_execution=executed)
    model.compile(optimizer, loss, **how)
    dataset, logs = dataset_of(pairs[:rows], seed=order), Logs()
    resume = kt.ResumeTraining(path, dataset, every=every, callbacks=[logs, *saved])
    options = dict(epochs=3, validation_data=dataset_of(pairs[:9], shuffle=False)) | options
    callbacks = [logs, *saved, resume, *extra]
    with contextlib.suppress(Interrupted):
        model.fit(dataset, callbacks=callbacks, shuffle=False, verbose=0, **options)
        logs.ended = True
    return model, logs


def assert_same(one, other):
    """Weights, random states and optimizer bit for bit; and the logs of what both have seen."""
    (model, logs), (whole, whole_logs) = one, other
    assert_equal(*((*x.variables, *x.optimizer.variables) for x in (model, whole)))
    assert logs.epochs.items() <= whole_logs.epochs.items()
    assert logs.seen == whole_logs.seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    model, logs = fit(tmp_path_factory.mktemp("whole") / "points", 0)
    steps = len(logs.updates) // 3
    assert steps > 6
    return model, logs, steps


def test_stopped_again_and_again_and_after_the_end(whole, tmp_path):
    """Before the first point, within an epoch, and in the validation after all updates of one."""
    *expected, steps = whole
    within = 4 * ((steps + 6) // 4) - steps
    ways = [  # seed, how it is stopped, steps between points, epoch and step that had been done
        (0, dict(update=3), 4, 0, 0),
        (0, dict(update=steps + 6), 4, 0, 0),  # the script draws the weights that it drew before
        (2, dict(epoch=1), steps, 1, within),
        (3, {}, 4, 1, steps),
        (4, {}, 4, None, None),
    ]
    for seed, when, every, first, done in ways:
        resumed = fit(tmp_path, seed, [Interrupting(**when)], every)
        for (epoch, batch), values in resumed[1].updates.items():
            passed = epoch == first and batch < done
            assert values == expected[1].updates[epoch, done - 1 if passed else batch]
        assert min(resumed[1].updates, default=(None,))[0] == first
        assert resumed[1].ended is not bool(when)
        if not when:
            assert_same(resumed, expected)


@pytest.mark.parametrize("way", ["several epochs a pass", "several steps a call"])
def test_other_ways_to_fit(tmp_path, way):
    options, update = dict(executed=4, epochs=2, validation_data=None), 2
    if way == "several epochs a pass":
        # Keras makes a new iterator when it has counted the batches of a pass, some epochs.
        count = len(dataset_of(corpus()[0], seed=5))
        part = next(number for number in range(2, count + 1) if not count % number)
        epochs, update = count // part + 2, 6
        assert update < count
        options = dict(steps_per_epoch=part, epochs=epochs, validation_data=None)
    assert not fit(tmp_path / "one", 0, [Interrupting(update)], 2, **options)[1].ended
    resumed = fit(tmp_path / "one", 2, every=2, **options)
    assert_same(resumed, fit(tmp_path / "whole", 0, **options))


def test_callbacks_go_on_where_they_were(tmp_path):
    """Patience runs out when it would have, and the best weights come back."""

    def run(path, seed, extra=()):
        how = dict(mode="max", patience=3, restore_best_weights=True)
        stopping = keras.callbacks.EarlyStopping("val_loss", **how)
        return *fit(path, seed, extra, saved=[stopping], epochs=9), stopping

    model, logs, stopping = run(tmp_path / "whole", 0)
    assert max(logs.epochs) == stopping.stopped_epoch < 8
    steps = len(logs.updates) // len(logs.epochs)
    assert not run(tmp_path / "one", 0, [Interrupting(2 * steps + 3)])[1].ended
    resumed, resumed_logs, stopping_2 = run(tmp_path / "one", 2)
    assert resumed_logs.ended and resumed_logs.seen == logs.seen
    assert (stopping_2.best, stopping_2.wait) == (stopping.best, stopping.wait)
    assert_equal(model.get_weights(), resumed.get_weights())


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
        (7, kt.START, "norm of step 7 of epoch 1 is not finite.* resumes from step 4 of epoch 1"),
        (5, kt.UNK, "a weight after step 6 of epoch 1 is not finite.* step 4 of epoch 1"),
    ],
)
def test_nothing_is_saved_of_what_has_diverged(whole, tmp_path, update, token, said):
    """Nor what was saved after step 6, which has come to the loss of step 7, and would again."""
    *expected, _ = whole
    with pytest.raises(FloatingPointError, match=said):
        fit(tmp_path, 0, [Spoiling(update, token)], every=2)
    assert_same(fit(tmp_path, 2, every=2), expected)


def test_what_cannot_go_on(whole, tmp_path):
    fit(tmp_path, 0, epochs=1)
    dataset, stopping = dataset_of(corpus()[0]), keras.callbacks.EarlyStopping("loss")
    with pytest.raises(ValueError, match="dataset must be the result of make_dataset"):
        kt.ResumeTraining(tmp_path, dataset.take(3))
    with pytest.raises(ValueError, match="every must be at least 1 step"):
        kt.ResumeTraining(tmp_path, dataset, every=0)
    resume = kt.ResumeTraining(tmp_path, dataset, callbacks=[stopping])
    with pytest.raises(ValueError, match="must come after the callbacks that it saves"):
        whole[0].fit(dataset, callbacks=[resume, stopping], shuffle=False)
    with pytest.raises(ValueError, match="with the same model, optimizer and strategy"):
        fit(tmp_path, 0, width=5)
    with pytest.raises(ValueError, match="batches per pass to resume"):
        fit(tmp_path, 0, rows=40)
    with pytest.raises(ValueError, match="received others: use the same text"):
        fit(tmp_path, 0, order=6)
    with pytest.raises(ValueError, match="a multiple of steps_per_execution=5, received"):
        fit(tmp_path, 0, executed=5)


def test_only_a_new_learning_rate_of_the_script_replaces_that_of_the_checkpoint(tmp_path):
    pairs, tokenizer = corpus()
    lower = keras.callbacks.LearningRateScheduler(lambda *_: 5e-4)
    for epochs, rate, callbacks, expected in (
        (1, 1e-3, [lower], 5e-4),
        (2, 1e-3, [], 5e-4),
        (3, 1e-5, [], 1e-5),
    ):
        model, dataset = Own(tokenizer.vocabulary_size, 6), dataset_of(pairs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False)
        callbacks = [kt.ResumeTraining(tmp_path, dataset), *callbacks]
        model.fit(dataset, epochs=epochs, callbacks=callbacks, shuffle=False, verbose=0)
        assert float(model.optimizer.learning_rate) == pytest.approx(expected)


def test_when_a_point_is_due(tmp_path):
    """At multiples of a number; without one, when the last took 2 % of the time since."""
    dataset = dataset_of(corpus()[0])
    resume = kt.ResumeTraining(tmp_path, dataset, every=7)
    resume.position.total_steps = 15
    assert resume._is_due(before=13) and not resume._is_due(before=14)
    resume = kt.ResumeTraining(tmp_path, dataset)
    for seconds, ago, due in [(None, 29, False), (None, 31, True), (9, 440, False), (9, 460, True)]:
        resume._save_seconds, resume._saved = seconds, time.monotonic() - ago
        assert resume._is_due(before=0) is due


def test_other_replicas_go_on_with_the_sum_of_what_replicas_counted():
    arrays = {f"metrics/0/total@{i}": np.array(x) for i, x in enumerate((3.0, 4.5, 1.0))}
    one, two = kt.make_strategy("one"), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for strategy, expected in ((one, [8.5]), (two, [8.5, 0.0])):
        found = scatter_metrics(strategy, arrays | {"model/0/w@0": np.ones(2)})
        assert [found.pop(f"metrics/0/total@{i}") for i in range(len(expected))] == expected
        assert [*found] == ["model/0/w@0"]


# The signals; the status that it exits with; after how many of them it went on.
CASES = {
    "SIGINT": ([signal.SIGINT], 130, 1),
    "SIGTERM twice": ([signal.SIGTERM] * 2, 143, 1),
    "SIGHUP twice, the shell's and the system's": ([signal.SIGHUP] * 2, 129, 2),
    "SIGHUP and SIGTERM, systemd's": ([signal.SIGHUP, signal.SIGTERM], 143, 1),
    "nohup": ([signal.SIGHUP], None, 1),
    "SIGHUP, the terminal is gone": ([signal.SIGHUP], 129, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_signals(name, monkeypatch, capfd):
    numbers, expected, went_on = CASES[name]
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(os, "_exit", sys.exit)
    handlers = {number: lambda *_: None for number in (signal.SIGINT, signal.SIGTERM)}
    handlers[signal.SIGHUP] = signal.SIG_IGN if name == "nohup" else lambda *_: None
    before = {number: signal.signal(number, handlers[number]) for number in handlers}
    asked, passed, status = [], [], None
    try:
        with open(write, "w") as gone, monkeypatch.context() as patched:
            if name.endswith("gone"):
                patched.setattr(sys, "stderr", gone)
            with save_on_signals(types.SimpleNamespace(request_exit=asked.append)):
                for number in numbers:
                    signal.raise_signal(number)
                    passed.append(number)
    except SystemExit as end:
        status = end.code
    found = {number: signal.signal(number, before[number]) for number in handlers}
    assert found == handlers, "as they were"
    assert (status, len(passed)) == (expected, went_on)
    assert asked == [128 + number for number in numbers[:1] if expected]
    said = capfd.readouterr().err
    assert said.count("\n") == (bool(asked) and not name.endswith("gone"))
    assert not said or said.startswith(f"keras-transformer: {numbers[0].name}: saving the training")
