"""What a saved model's configuration may name, and how large it may be."""

import json

import keras
import pytest

import keras_transformer as kt
from keras_transformer.inspection.keras_file import WEIGHTS, StoredMember, open_archive
from keras_transformer.inspection.model_config import (
    ACTIVATIONS,
    CLASSES,
    KERAS,
    PACKAGE,
    check_weights,
    implied_weights,
    read_model_config,
)
from keras_transformer.inspection.probing import Probe
from keras_transformer.presets.options import MAX_DISTANCES, RELATIVE
from keras_transformer.runs.models import load
from tests.support.sealing import reseal
from tests.support.trials.doing import sound

SIZES = dict(num_layers=2, d_model=8, num_heads=2, d_ff=12, max_length=7)


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


@pytest.mark.parametrize(
    "options",
    [
        {"num_encoder_layers": 3},
        {"num_decoder_layers": 3, "positions": "relative"},
        {"output_bias": True, "share_embeddings": "target"},
        {"suppress_ids": True},
    ],
)
def test_implied_weights_of_options(options):
    check_implied_weights(13, **options)


def check_implied_weights(target, **options):
    model = kt.Transformer(11, target, **SIZES, dropout=0.0, **options)
    model.build()
    assert implied_weights(model.get_config()) == model.count_params()


def test_half_a_weight_of_four_bits(tmp_path):
    model = kt.Transformer(11, 11, **SIZES)
    model.build()
    config = {"registered_name": f"{PACKAGE}Transformer", "config": model.get_config()}
    weights = {"x": [model.count_params() - 1]}
    with pytest.raises(ValueError, match="it is corrupted or was modified"):
        check_weights("m", config, weights)
    check_weights("m", config, {"x": [model.count_params()]})
    config["config"] |= {"dtype": {"config": {"mode": "int4/-1"}}}
    check_weights("m", config, {"x": [model.count_params() // 2 + 1]})


def changed_config(parts):
    model = kt.Transformer(11, 11, **SIZES)
    config = model.get_config() | {"changes": {"parts": parts}}
    kind = {"registered_name": f"{PACKAGE}Transformer", "class_name": "Transformer"}
    return json.dumps(kind | {"config": config})


@pytest.mark.parametrize(
    "change",
    [
        {"trainable": "no"},
        {"method": "quantize"},
        {"lora_rank": 0},
        {"lora_rank": 1 << 40},
        {"lora_rank": 2, "lora_alpha": float("inf")},
        {"quantization": "gptq"},
        {"quantization": 8},
        {"quantization": {"module": "builtins", "class_name": "eval", "config": "1"}},
        {"quantization": {"module": "keras.optimizers", "class_name": "Adam", "config": {}}},
        ["trainable"],
    ],
)
def test_other_changes_are_refused(change):
    for parts in ({"encoder": change}, [change]):
        with pytest.raises(ValueError, match="^m: "):
            read_model_config("m", changed_config(parts))


def test_lora_of_a_rank_that_the_file_does_not_hold():
    model = kt.Transformer(11, 11, **SIZES)
    model.build()
    held = {"x": [model.count_params() + 100]}
    part = "encoder/layers/encoder_layer/self_attention/query_dense"
    config = json.loads(changed_config({part: {"lora_rank": 1000}}))
    with pytest.raises(ValueError, match="it is corrupted or was modified"):
        check_weights("m", config, held)
    check_weights("m", json.loads(changed_config({part: {"lora_rank": 2}})), held)


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
    with pytest.raises(ValueError, match="if it is your own, register it"):
        read_model_config("m", json.dumps(config))


def test_a_member_is_read_at_any_place(tmp_path):
    with open_archive(sound(tmp_path, "run") / "model.keras") as archive:
        whole = archive.read(WEIGHTS)
        with StoredMember(archive, WEIGHTS) as file:
            assert file.seek(0, 2) == len(whole) and file.read(5) == b""
            for start in (len(whole) - 3, 0, 1000, 7):
                file.seek(start)
                assert file.read(100) == whole[start : start + 100]
            assert file.seek(-50, 1) == 57


def test_deep_values_are_bounded():
    config = {"registered_name": f"{PACKAGE}Transformer", "class_name": "Transformer"}
    for value, message in (
        ([[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]], "nested"),
        (["x" * 5000], "has 5,000 characters"),
        ([0] * 200_000, "or too long"),
    ):
        with pytest.raises(ValueError, match=message):
            read_model_config("m", json.dumps(config | {"config": {"x": value}}))
