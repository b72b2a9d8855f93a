"""What files keep and refuse: weights left over, HDF5, and frozen parts."""

import json
import zipfile

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support.layer_harness import randomize


def made(**options):
    model = kt.Transformer(
        20, 20, **{"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16} | options
    )
    model.build()
    return randomize(model)


@pytest.mark.parametrize(
    ("of_file", "of_model"),
    [
        ({"num_layers": 3, "norm": "pre"}, {}),
        ({"norm": "pre"}, {}),
        ({}, {"share_embeddings": "target"}),
        ({}, {"share_embeddings": "all"}),
    ],
)
def test_weights_of_more_layers_are_refused(of_file, of_model, tmp_path):
    larger = made(**of_file)
    larger.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False)
    larger.save_weights(tmp_path / "larger.weights.h5")
    larger.save(tmp_path / "larger.keras")
    larger.save_weights(tmp_path / "larger.weights.json", max_shard_size=1e-4)
    for name in ("larger.weights.h5", "larger.keras", "larger.weights.json"):
        with pytest.raises(ValueError, match=r"\d+ layers, but this model has"):
            made(**of_model).load_weights(tmp_path / name)
    model = made(**of_model)
    before = model.decoder.get_weights()[0]
    with pytest.warns(UserWarning, match="layers, but this model has"):
        model.load_weights(tmp_path / "larger.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(model.decoder.get_weights()[0], larger.decoder.get_weights()[0])
    assert model.decoder.get_weights()[0] is not before


def test_what_training_leaves_is_not_left_over(tmp_path):
    """The optimizer's variables, states of random generators."""
    trained = made(dropout=0.1)
    trained.compile("adam", kt.SmoothedCrossEntropy(), metrics=[kt.Perplexity()], jit_compile=False)
    ids = np.array([[2, 5, 6]])
    trained.fit((ids, ids), ids, verbose=0)
    trained.save_weights(tmp_path / "trained.weights.h5")
    plain = made(dropout=0.0)
    plain.load_weights(tmp_path / "trained.weights.h5")
    for one, other in zip(plain.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_saved_model_of_another_configuration_is_refused(tmp_path):
    made(norm="pre").save(tmp_path / "pre.keras")
    with (
        zipfile.ZipFile(tmp_path / "pre.keras") as old,
        zipfile.ZipFile(tmp_path / "post.keras", "w") as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                config = json.loads(content)
                config["config"]["norm"] = "post"
                content = json.dumps(config)
            new.writestr(name, content)
    with pytest.raises(ValueError, match="layers, but this model has"):
        keras.saving.load_model(tmp_path / "post.keras")


class Tagger(kt.TokenTrainer, keras.Model):
    """A model of a user's own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = kt.PositionalEmbedding(20, 8)

    def build(self, shape):
        self.embedding.build(shape)

    def call(self, ids):
        return self.embedding.logits(self.embedding(ids))


@pytest.mark.parametrize("name", ["m.h5", "m.hdf5", "m.weights.h5"])
def test_hdf5_is_refused(name, tmp_path):
    tagger = Tagger()
    tagger.build((None, 3))
    for model in (made(), tagger):
        with pytest.raises(ValueError, match=r"must end in \.keras"):
            model.save(tmp_path / name)
    assert not (tmp_path / name).exists()


# Frozen parts keep their weights: in training, in files, and after loading.

SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
TARGET_IN, TARGET_OUT = np.array([[2, 5, 6], [2, 7, 0]]), np.array([[5, 6, 3], [7, 3, 0]])


def frozen_model(share="target", **options):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(
        20, 20, num_layers=1, d_model=8, num_heads=2, d_ff=16, share_embeddings=share
    )
    model.build()
    model.encoder.trainable = model.source_embedding.trainable = False
    optimizer = kt.EMAAdam(0.1, use_ema=True, ema_momentum=0.9, weight_decay=0.1)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), **options)
    return model


def frozen_weights(model):
    return [*model.encoder.get_weights(), *model.source_embedding.get_weights()]


def learn(model):
    model.fit((SOURCE, TARGET_IN), TARGET_OUT, epochs=2, verbose=0)


@pytest.mark.parametrize("fused", [True, False])
def test_the_frozen_stay_and_the_rest_learns(fused):
    """By the fused loss too, though weights decay and have a running mean."""
    model = frozen_model(fused_loss=fused)
    before, all_before = frozen_weights(model), model.get_weights()
    learn(model)
    with kt.ema_weights(model):
        for old, new in zip(before, frozen_weights(model), strict=True):
            np.testing.assert_array_equal(old, new)
    changed = sum(
        not np.array_equal(*pair) for pair in zip(all_before, model.get_weights(), strict=True)
    )
    assert changed == len(all_before) - len(before)


def test_nothing_frozen_leaves_no_trace():
    model = kt.Transformer(20, 20, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    assert "frozen" not in model.get_config()
    model.build()
    model.trainable = False
    assert not kt.Transformer.from_config(model.get_config()).trainable_variables
