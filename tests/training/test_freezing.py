"""Frozen parts keep their weights: in training, in what is saved, and after loading."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.transformer import freeze

SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
TARGET = np.array([[2, 5, 6], [2, 7, 0]]), np.array([[5, 6, 3], [7, 3, 0]])


def frozen_model(share="target", **options):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(
        20, 20, num_layers=1, d_model=8, num_heads=2, d_ff=16, share_embeddings=share
    )
    model.build()
    freeze(model, ["encoder", "source-embeddings"])
    optimizer = kt.MeanAdam(0.1, use_ema=True, ema_momentum=0.9, weight_decay=0.1)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), **options)
    return model


def frozen_weights(model):
    return [*model.encoder.get_weights(), *model.source_embedding.get_weights()]


def learn(model):
    model.fit((SOURCE, TARGET[0]), TARGET[1], epochs=2, verbose=0)


@pytest.mark.parametrize("fused", [True, False])
def test_the_frozen_stay_and_the_rest_learns(fused):
    """By the fused loss too, though weights decay and have a running mean."""
    model = frozen_model(fused_loss=fused)
    before, all_before = frozen_weights(model), model.get_weights()
    learn(model)
    with kt.averaged_weights(model):
        for old, new in zip(before, frozen_weights(model), strict=True):
            np.testing.assert_array_equal(old, new)
    changed = sum(
        not np.array_equal(*pair) for pair in zip(all_before, model.get_weights(), strict=True)
    )
    assert changed == len(all_before) - len(before)


def test_a_saved_model_stays_frozen(tmp_path):
    """Keras keeps `trainable` of the whole alone, and would drop the optimizer's state."""
    model = frozen_model()
    learn(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.encoder.trainable and not loaded.source_embedding.trainable
    assert loaded.decoder.trainable and loaded.target_embedding.trainable
    assert len(loaded.optimizer.variables) == len(model.optimizer.variables)
    before = frozen_weights(model)
    for old, new in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    learn(loaded)
    for old, new in zip(before, frozen_weights(loaded), strict=True):
        np.testing.assert_array_equal(old, new)


def test_nothing_frozen_leaves_no_trace():
    model = kt.Transformer(20, 20, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    assert "changes" not in model.get_config()
    model.build()
    model.trainable = False
    assert not kt.Transformer.from_config(model.get_config()).trainable_variables


def test_only_layers_are_frozen():
    """Whatever a file names: of the class itself, every model would have it."""
    config = frozen_model().get_config()
    del config["changes"]
    with pytest.raises(ValueError, match="changes '__class__', which is not a layer"):
        kt.Transformer.from_config(config | {"frozen": ["__class__"]})


@pytest.mark.parametrize("share", ["target", "all"])
def test_what_earlier_versions_froze_stays_frozen(share):
    config = frozen_model(share).get_config()
    del config["changes"]
    config["frozen"] = ["decoder", "source_embedding.embeddings", "target_embedding.embeddings"]
    model = kt.Transformer.from_config(config)
    assert [v.path for v in model.trainable_variables] == [v.path for v in model.encoder.weights]
