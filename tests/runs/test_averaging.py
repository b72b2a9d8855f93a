"""Means of weights: of checkpoints, of a run's best or last ones, and the optimizer's own."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.averaging import list_checkpoints


def model_of(seed, d_model=8, **options):
    keras.utils.set_random_seed(seed)
    model = kt.Transformer(9, 9, 1, d_model, 2, 16, positions="rotary", **options)
    model.build()
    return model


@pytest.fixture
def models(tmp_path):
    models = [model_of(seed) for seed in (1, 2, 3)]
    paths = [tmp_path / f"{number}.weights.h5" for number in (1, 2, 3)]
    for model, path in zip(models, paths, strict=True):
        model.save_weights(path)
    return models, paths


def test_average_is_the_arithmetic_mean(models, tmp_path):
    """Also in the place of one of them."""
    models, paths = models
    kt.average_checkpoints(paths, tmp_path / "mean.weights.h5")
    kt.average_checkpoints(paths, paths[0])
    for path in (tmp_path / "mean.weights.h5", paths[0]):
        mean = model_of(4)
        mean.load_weights(path)
        weights = zip(mean.get_weights(), *(m.get_weights() for m in models), strict=True)
        for one, *several in weights:
            expected = np.mean([x.astype("float64") for x in several], axis=0)
            np.testing.assert_allclose(one, expected, rtol=1e-7, atol=1e-9)
            assert one.dtype == "float32"


def test_the_best_and_the_last_up_to_the_first_that_is_not_kept():
    state = {"monitor": "val_loss", "checkpoints": [{"epoch": i} for i in (1, 2, 4, 5)]}
    state["history"] = [{"val_loss": loss} for loss in (2.5, 2.3, 2.8, 4.0, 4.1)]
    for by, expected in (("best", [2, 1]), ("last", [5, 4])):
        assert [one["epoch"] for one in list_checkpoints(state, by)] == expected


def test_quantized_weights_have_no_mean(models, tmp_path):
    models[0][0].quantize("int8", filters="dense")
    models[0][0].save_weights(models[1][0])
    with pytest.raises(ValueError, match="in int8: average weights in float32 or float16, before"):
        kt.average_checkpoints(models[1][:1], tmp_path / "mean.weights.h5")


@pytest.mark.parametrize("options", [{"d_model": 16}, {"share_embeddings": "all"}])
def test_other_shapes_are_refused(models, tmp_path, options):
    _, (one, other, _) = models
    model_of(2, **options).save_weights(other)
    mean = tmp_path / "mean.weights.h5"
    for first, second in ((one, other), (other, one)):
        message = f"{second.name} must have the weights of .*{first.name}, b"
        with pytest.raises(ValueError, match=message):
            kt.average_checkpoints([first, second], mean)
    assert not mean.exists()


def test_files_that_have_no_mean(models, tmp_path):
    (model, *_), (one, other, text) = models
    weight, mean = model.trainable_variables[3], tmp_path / "mean.weights.h5"
    weight.assign(np.full(weight.shape, np.nan))
    model.save_weights(other)
    for order in ([one, other], [other, one]):
        with pytest.raises(ValueError, match="2.weights.h5 must be finite"):
            kt.average_checkpoints(order, mean)
    text.write_text("none")
    with pytest.raises(ValueError, match="3.weights.h5 is not a readable weights file"):
        kt.average_checkpoints([text], mean)
    with pytest.raises(ValueError, match="paths must not be empty"):
        kt.average_checkpoints([], mean)
    assert not mean.exists()


def test_running_mean_by_hand():
    """m ← 0.8·m + 0.2·w after each update, begun at the weights after the first one."""
    model, ids = model_of(1), np.array([[4, 5, 6, 3], [7, 8, 3, 0]])
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.8)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.0))
    mean = None
    for _ in range(4):
        model.train_step(((ids, ids), ids))
        weights = [w.numpy() for w in model.trainable_variables]
        before = weights if mean is None else mean
        mean = [0.8 * m + 0.2 * w for m, w in zip(before, weights, strict=True)]
    with kt.ema_weights(model):
        inside = [w.numpy() for w in model.trainable_variables]
    outside = [w.numpy() for w in model.trainable_variables]
    for expected, one, other, last in zip(mean, inside, outside, weights, strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(other, last)
    assert max(np.abs(a - b).max() for a, b in zip(inside, outside, strict=True)) > 1e-3
