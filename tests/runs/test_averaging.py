"""Means of weights: of checkpoints, of a run's best or last ones, and the optimizer's own."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.runs.averaging import average
from keras_transformer.runs.run import Run, rank


def model_of(seed, d_model=8, share_embeddings="none"):
    keras.utils.set_random_seed(seed)
    model = kt.Transformer(9, 9, 1, d_model, 2, 16, share_embeddings=share_embeddings)
    model.build()
    return model


def save(model, path):
    model.save_weights(path)
    return path


def test_average_is_the_arithmetic_mean(tmp_path):
    models = [model_of(seed) for seed in (1, 2, 3)]
    paths = [save(m, tmp_path / f"{i}.weights.h5") for i, m in enumerate(models)]
    before = [path.read_bytes() for path in paths]
    kt.average_checkpoints(paths, tmp_path / "mean.weights.h5")
    mean = model_of(4)
    mean.load_weights(tmp_path / "mean.weights.h5")
    for one, *several in zip(mean.get_weights(), *(m.get_weights() for m in models), strict=True):
        expected = np.mean([x.astype("float64") for x in several], axis=0)
        np.testing.assert_allclose(one, expected, rtol=1e-7, atol=1e-9)
        assert one.dtype == "float32"
    assert [path.read_bytes() for path in paths] == before


def test_average_in_place(tmp_path):
    paths = [save(model_of(seed), tmp_path / f"{seed}.weights.h5") for seed in (1, 2)]
    kt.average_checkpoints(paths, tmp_path / "elsewhere.weights.h5")
    kt.average_checkpoints(paths, paths[0])
    with h5py.File(tmp_path / "elsewhere.weights.h5") as a, h5py.File(paths[0]) as b:
        names = []
        a.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
        assert len(names) > 20
        for name in names:
            np.testing.assert_array_equal(a[name][...], b[name][...])


@pytest.mark.parametrize("options", [{"d_model": 16}, {"share_embeddings": "all"}])
def test_other_shapes_are_refused(tmp_path, options):
    paths = [
        save(model_of(1), tmp_path / "1.weights.h5"),
        save(model_of(2, **options), tmp_path / "2.weights.h5"),
    ]
    with pytest.raises(
        ValueError, match="2.weights.h5 must have the weights of .*1.weights.h5, but .* has shape"
    ):
        kt.average_checkpoints(paths, tmp_path / "mean.weights.h5")
    with pytest.raises(ValueError, match="1.weights.h5 must have the weights of .*2.weights.h5"):
        kt.average_checkpoints(paths[::-1], tmp_path / "mean.weights.h5")
    assert not (tmp_path / "mean.weights.h5").exists()


def test_weights_that_are_not_finite(tmp_path):
    good, bad = model_of(1), model_of(2)
    paths = [save(good, tmp_path / "1.weights.h5"), tmp_path / "2.weights.h5"]
    bad.trainable_variables[3].assign(np.full(bad.trainable_variables[3].shape, np.nan))
    save(bad, paths[1])
    for order in (paths, paths[::-1], paths[1:]):
        with pytest.raises(ValueError, match="2.weights.h5 must be finite"):
            kt.average_checkpoints(order, tmp_path / "mean.weights.h5")
    assert not (tmp_path / "mean.weights.h5").exists()


def test_nothing_to_average(tmp_path):
    with pytest.raises(ValueError, match="paths must not be empty"):
        kt.average_checkpoints([], tmp_path / "mean.weights.h5")
    (tmp_path / "text.weights.h5").write_text("none")
    with pytest.raises(ValueError, match="text.weights.h5 is not a readable weights file"):
        kt.average_checkpoints([tmp_path / "text.weights.h5"], tmp_path / "mean.weights.h5")


# The running mean of the weights.


def train_steps(model, steps, **optimizer):
    model.compile(keras.optimizers.SGD(0.5, **optimizer), kt.SmoothedCrossEntropy(0.0))
    model.jit_compile = False
    ids = np.array([[4, 5, 6, 3], [7, 8, 3, 0]])
    seen = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(
            [w.numpy() for w in model.trainable_variables]
        )
    )
    dataset = tf.data.Dataset.from_tensors(((ids, ids), ids)).repeat(steps)
    inside = []

    def look(epoch, logs):
        with kt.ema_weights(model):
            inside.append([w.numpy() for w in model.trainable_variables])
        inside.append([w.numpy() for w in model.trainable_variables])

    look = keras.callbacks.LambdaCallback(on_epoch_end=look)
    model.fit(dataset, callbacks=[record, look], shuffle=False, verbose=0)
    return seen, *inside


def test_running_mean_by_hand():
    """m ← 0.8·m + 0.2·w after each update, begun at the weights after the first one."""
    seen, averaged, after = train_steps(model_of(1), 4, use_ema=True, ema_momentum=0.8)
    mean = seen[0]
    for weights in seen[1:]:
        mean = [0.8 * m + 0.2 * w for m, w in zip(mean, weights, strict=True)]
    moved = 0
    for expected, inside, outside, last in zip(mean, averaged, after, seen[-1], strict=True):
        np.testing.assert_allclose(inside, expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(outside, last)
        moved = max(moved, np.abs(inside - outside).max())
    assert moved > 1e-3


def test_without_a_running_mean_nothing_changes():
    seen, averaged, after = train_steps(model_of(1), 2)
    for a, b, c in zip(averaged, after, seen[-1], strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, c)


# A run's checkpoints.


@pytest.mark.parametrize(
    "path, options, message",
    [
        ("nothing", {}, "has no checkpoints"),
        ("run", {"number": 3}, "number must be from 1 to 2, .* received 3"),
        ("run", {"number": 0}, "number must be from 1 to 2, .* received 0"),
        ("run", {"by": "worst"}, 'by must be "best" or "last"'),
    ],
)
def test_runs_that_cannot_be_averaged(tmp_path, path, options, message):
    checkpoints = [{"file": f"{i}.weights.h5", "epoch": i} for i in (1, 2)]
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    state = {"additional": {"monitor": "val_loss", "checkpoints": checkpoints}}
    Run(tmp_path / "run").checkpoints.write("000002-00000000", state, {})
    with pytest.raises(ValueError, match=message):
        average(tmp_path / path, tmp_path / "mean", **options)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "monitor, best",
    [
        ("val_loss", [2, 4, 5, 1, 3]),
        # By BLEU, the earlier of equals; below 5 by loss, behind all that have more.
        ("val_bleu", [3, 1, 4, 2, 5]),
    ],
)
def test_rank(monitor, best):
    losses, bleus = [5.0, 3.0, 9.0, 3.0, 4.0], [5.0, 4.9, 7.0, 5.0, 4.99]
    rows = zip(losses, bleus, strict=True)
    state = {
        "monitor": monitor,
        "checkpoints": [{"epoch": i} for i in range(1, 6)],
        "history": [{"val_loss": loss, "val_bleu": bleu} for loss, bleu in rows],
    }
    assert [one["epoch"] for one in rank(state)] == best


def test_rank_of_what_has_diverged():
    """As runs of older versions hold it: behind all others."""
    state = {
        "monitor": "val_loss",
        "checkpoints": [{"epoch": i} for i in range(1, 5)],
        "history": [{"val_loss": loss} for loss in (5.0, np.nan, 3.0, np.nan)],
    }
    assert [one["epoch"] for one in rank(state)] == [3, 1, 2, 4]
