"""Relative positions from the training to the server: resumed, in int8, exported."""

import dataclasses

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.presets import ExportConfig
from keras_transformer.runs.run import Run
from keras_transformer.serving.acceptance.server_process import ServerProcess
from keras_transformer.serving.served_translator import StoredWeights
from keras_transformer.train import train
from tests.support.reversed_text import MODEL, write_corpus


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training of two epochs without a stop."""
    folder = tmp_path_factory.mktemp("relative")
    model = dataclasses.replace(MODEL, positions="relative", num_layers=1, max_distance=2)
    config = kt.TrainConfig(
        *write_corpus(folder, 300, 1),
        *write_corpus(folder, 40, 2),
        vocabulary_size=300,
        model=model,
        epochs=2,
        tokens_per_batch=256,
        learning_rate=1e-2,
        warmup_steps=20,
        strategy="one",
    )
    return config, folder / "run", train(config, folder / "run")


def test_resumed_training_has_the_same_loss_curve(whole, tmp_path):
    config, _, history = whole
    first = train(dataclasses.replace(config, epochs=1), tmp_path / "run")
    rest = train(config, tmp_path / "run", resume=True)
    for name, values in history.items():
        assert first[name] + rest[name] == values, name
    assert Run(tmp_path / "run").read_config().model.positions == config.model.positions


def test_export_in_int8_answers_as_the_model_with_those_weights(whole, tmp_path):
    """Kernels are rounded, tables of distances are not; longer texts than it was trained on."""
    _, output, _ = whole
    translator = kt.load(output)
    config = ExportConfig(signatures=(), precision="int8")
    path = kt.export(translator, tmp_path, config=config)
    with StoredWeights(translator.model, "int8").in_use():
        rounded = [np.array(weight.value) for weight in translator.model.weights]
    for weight, value in zip(translator.model.weights, rounded, strict=True):
        assert weight.name.startswith("relative_") <= np.array_equal(weight, value)
        weight.assign(value)
    texts = ["ba ce di", "kala melo", "", "ba ce di fo gu ka la me ba ce di fo gu ka la me"]
    best = [found for (found,) in translator.translate_n_best(texts, n_best=1)]
    with ServerProcess(path) as server:
        found = server.predict(texts)
    assert found["text"] == [one.text for one in best]
    np.testing.assert_allclose(found["log_prob"], [one.log_prob for one in best], atol=1e-3)
