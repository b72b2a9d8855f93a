"""The loss and the metrics by their names; `test_token_trainer.py` compiles a model by them."""

import keras
import pytest

import keras_transformer as kt
from keras_transformer.training.losses import _BY_NAME, replace_names


def test_wherever_they_stand():
    loss, metrics, other = replace_names(
        ["SmoothedCrossEntropy", {"out": ["target_tokens", None]}, ("adam", 2.0)]
    )
    assert type(loss) is kt.SmoothedCrossEntropy and loss.label_smoothing == 0.1
    (tokens, nothing) = metrics["out"]
    assert type(tokens) is kt.TargetTokens and tokens.name == "target_tokens" and nothing is None
    assert other == ("adam", 2.0)


@pytest.mark.parametrize("name", _BY_NAME)
def test_no_name_of_keras_is_taken(name):
    for get in (keras.losses.get, keras.metrics.get, keras.optimizers.get):
        with pytest.raises(ValueError):
            get(name)
