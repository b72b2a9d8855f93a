"""What a saved model's configuration may name."""

import keras
import pytest

import keras_transformer as kt
from keras_transformer.runs.opening import load
from tests.support.sealing import reseal
from tests.support.trials.broken_runs import archive
from tests.support.trials.doing import sound


@keras.saving.register_keras_serializable(package="strangers")
class Wider(kt.Transformer):
    """A class of the calling program's."""


def test_classes_of_the_calling_program_are_loaded(tmp_path):
    run = sound(tmp_path, "run")
    model = load(run).model
    own = Wider.from_config(model.get_config())
    own.build()
    own.set_weights(model.get_weights())
    own.save(run / "model.keras")
    reseal(run)
    assert type(load(run).model) is Wider

    def rename(members):
        content = members["config.json"]
        members["config.json"] = content.replace(b"strangers>Wider", b"strangers>Other")

    archive(rename)(run)
    with pytest.raises(ValueError, match="refers to the Wider .* if it is your own, register it"):
        load(run)
