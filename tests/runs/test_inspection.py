"""What a saved model's configuration may name, and how large it may be."""

import keras
import pytest

import keras_transformer as kt
from keras_transformer.runs.opening import (
    ACTIVATIONS,
    CLASSES,
    KERAS,
    PACKAGE,
    check_config_value,
    load,
)
from tests.support.sealing import reseal
from tests.support.trials.doing import sound


@keras.saving.register_keras_serializable(package="strangers")
class Wider(kt.Transformer):
    """A class of the calling program's."""


def test_classes_are_those_that_are_registered():
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


def test_classes_of_the_calling_program_are_loaded(tmp_path):
    run = sound(tmp_path, "run")
    model = load(run).model
    own = Wider.from_config(model.get_config())
    own.build()
    own.set_weights(model.get_weights())
    own.save(run / "model.keras")
    reseal(run)
    assert type(load(run).model) is Wider
    config = keras.saving.serialize_keras_object(own) | {"registered_name": "strangers>Unknown"}
    with pytest.raises(ValueError, match="if it is your own, register it"):
        check_config_value(config)


def test_deep_values_are_bounded():
    config = {"registered_name": f"{PACKAGE}Transformer", "class_name": "Transformer"}
    for value, message in (
        ([[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]], "nested"),
        (["x" * 5000], "has 5,000 characters"),
    ):
        with pytest.raises(ValueError, match=message):
            check_config_value(config | {"config": {"x": value}})
