"""What a saved model's configuration may name, and how large it may be."""

import importlib
import json

import keras
import pytest

import keras_transformer as kt
from keras_transformer.inspection.model_config import (
    ACTIVATIONS,
    KERAS,
    PACKAGE,
    check_weights,
    implied_weights,
    read_model_config,
)
from keras_transformer.inspection.probing import Probe
from keras_transformer.position_schemes import MAX_DISTANCES, RELATIVE
from keras_transformer.registration import CLASSES, MODULES
from keras_transformer.runs.load import load
from tests.support.sealing import reseal
from tests.support.trials.doing import sound

SIZES = dict(num_layers=2, d_model=8, num_heads=2, d_ff=12, max_length=7)


@keras.saving.register_keras_serializable(package="strangers")
class Wider(kt.Transformer):
    """A class of the calling program's."""


def test_classes_are_those_that_are_registered():
    for module in MODULES:
        importlib.import_module(f"keras_transformer.{module}")
    names = [name for name in keras.saving.get_custom_objects() if name.startswith(PACKAGE)]
    assert sorted(names) == sorted(f"{PACKAGE}{name}" for name in CLASSES)


def test_names_of_keras_are_its_own():
    for module, name in KERAS:
        found = keras
        for part in module.split(".")[1:]:
            found = getattr(found, part)
        assert isinstance(getattr(found, name), type)
    known = {name for name in dir(keras.activations) if not name.startswith("_")}
    assert set(ACTIVATIONS) <= known and {"deserialize", "get"} <= known - set(ACTIVATIONS)


@pytest.mark.parametrize("share", ["none", "target", "all"])
@pytest.mark.parametrize("positions, norm", [("sinusoidal", "post"), ("learned", "pre")])
def test_implied_weights_are_those_of_the_model(share, positions, norm):
    target = 11 if share == "all" else 13
    check_implied_weights(target, share_embeddings=share, positions=positions, norm=norm)


@pytest.mark.parametrize("positions", [*RELATIVE, "none"])
def test_implied_weights_of_positions(positions):
    check_implied_weights(13, positions=positions)
    if positions in MAX_DISTANCES:
        check_implied_weights(13, positions=positions, max_distance=17)


def check_implied_weights(target, **options):
    model = kt.Transformer(11, target, **SIZES, dropout=0.0, **options)
    model.build()
    assert implied_weights(model.get_config()) == model.count_params()


def test_half_a_weight_of_four_bits(tmp_path):
    model = kt.Transformer(11, 11, **SIZES)
    model.build()
    config = {"registered_name": f"{PACKAGE}Transformer", "config": model.get_config()}
    weights = {"x": [model.count_params() - 1]}
    with pytest.raises(ValueError, match="it is damaged, or not what it says"):
        check_weights("m", config, weights)
    check_weights("m", config, {"x": [model.count_params()]})
    config["config"] |= {"dtype": {"config": {"mode": "int4/-1"}}}
    check_weights("m", config, {"x": [model.count_params() // 2 + 1]})


def test_classes_of_the_calling_program_are_loaded(tmp_path):
    run = sound(tmp_path, "run")
    model = load(run).model
    own = Wider.from_config(model.get_config())
    own.build()
    own.set_weights(model.get_weights())
    own.save(run / "model.keras")
    reseal(run)
    assert type(load(run).model) is Wider
    (answer,) = Probe([run / "model.keras"]).answers()
    config = json.loads(answer["config"])
    config["registered_name"] = "strangers>Unknown"
    with pytest.raises(ValueError, match="register your own classes before"):
        read_model_config("m", json.dumps(config))


def test_deep_values_are_bounded():
    config = {"registered_name": f"{PACKAGE}Transformer", "class_name": "Transformer"}
    for value, message in (
        ([[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]], "nested"),
        (["x" * 5000], "has 5,000 characters"),
        ([0] * 200_000, "or too long"),
    ):
        with pytest.raises(ValueError, match=message):
            read_model_config("m", json.dumps(config | {"config": {"x": value}}))
