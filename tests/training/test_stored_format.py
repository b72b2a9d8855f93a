"""Files of weights that hold more than the model, and files that could not be loaded."""

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
    ("of_file", "of_model", "names"),
    [
        (
            {"num_layers": 3, "norm": "pre"},
            {},
            ["encoder/final_norm", "decoder/layers/decoder_layer_2"],
        ),
        ({"norm": "pre"}, {}, ["encoder/final_norm", "decoder/final_norm"]),
        ({}, {"share_embeddings": "target"}, ["layers/dense"]),
        ({}, {"share_embeddings": "all"}, ["layers/positional_embedding_1"]),
    ],
)
def test_weights_that_are_left_over_are_named(of_file, of_model, names, tmp_path):
    larger = made(**of_file)
    larger.compile("adam", "smoothed_cross_entropy", jit_compile=False)
    larger.save_weights(tmp_path / "larger.weights.h5")
    larger.save(tmp_path / "larger.keras")
    larger.save_weights(tmp_path / "larger.weights.json", max_shard_size=1e-4)
    for name in ("larger.weights.h5", "larger.keras", "larger.weights.json"):
        with pytest.raises(ValueError, match="holds weights that .* does not have") as error:
            made(**of_model).load_weights(tmp_path / name)
        assert all(name in str(error.value) for name in names)
    model = made(**of_model)
    before = model.decoder.get_weights()[0]
    with pytest.warns(UserWarning, match="does not have"):
        model.load_weights(tmp_path / "larger.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(model.decoder.get_weights()[0], larger.decoder.get_weights()[0])
    assert model.decoder.get_weights()[0] is not before


def test_what_training_leaves_is_not_left_over(tmp_path):
    """The optimizer's variables, states of random generators."""
    trained = made(dropout=0.1)
    trained.compile("adam", "smoothed_cross_entropy", metrics=["perplexity"], jit_compile=False)
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
    with pytest.raises(ValueError, match="encoder/final_norm"):
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
        with pytest.raises(ValueError, match=r"use a name that ends in \.keras"):
            model.save(tmp_path / name)
    assert not (tmp_path / name).exists()
