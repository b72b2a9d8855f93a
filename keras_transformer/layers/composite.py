"""What Keras does not save of a layer with sublayers: which of them are frozen or quantized."""

import collections
import itertools
import re
from collections.abc import Iterator
from typing import Any, Self, TypeAlias

import keras
from keras.dtype_policies import DTypePolicyMap

from keras_transformer.utils import Config

# Paths of frozen sublayers, and paths and modes of quantized ones.
SublayerState: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


class CompositeLayer(keras.layers.Layer):
    """Base of layers that save which of their sublayers are frozen or quantized.

    Quantized sublayers are a `DTypePolicyMap` in the configuration's `dtype`, as in the backbones
    of KerasHub; frozen ones are a list, `frozen`. `find_sublayers` gives their paths. Once a loaded
    layer is built, both are applied.
    """

    _saved_state: SublayerState = (), ()

    def finish_build(self) -> None:
        """Ends `build`: applies what was saved, and `trainable=False`, to the sublayers."""
        if any(self._saved_state) or not self.trainable:
            apply_state(self, self._saved_state)
        self.built = True

    def get_config(self) -> Config:
        return super().get_config() | get_state(self)

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config, state = split_state(config)
        layer = super().from_config(config)
        layer._saved_state = state
        return layer


def get_state(layer: keras.layers.Layer) -> Config:
    """Returns the entries of a layer's configuration that describe its sublayers."""
    frozen: list[str] = []
    quantized = {}
    for path, sublayer in find_sublayers(layer):
        if sublayer.quantization_mode:
            _check_quantization(sublayer)
            quantized[path] = sublayer.dtype_policy.name
        is_inside = path.startswith(tuple(f"{parent}/" for parent in frozen))
        if layer.trainable and not sublayer.trainable and not is_inside:
            frozen.append(path)
    config: Config = {"frozen": frozen} if frozen else {}
    if quantized:
        config["dtype"] = _serialize_policies(layer.dtype_policy.name, quantized)
    return config


def split_state(config: Config) -> tuple[Config, SublayerState]:
    """Splits the entries of `get_state` from a configuration."""
    config = dict(config)
    changes = config.pop("changes", {"parts": {}})["parts"]  # of earlier versions
    if any(change.keys() - {"trainable"} for change in changes.values()):
        raise ValueError(
            "The file has quantized or LoRA layers of an earlier version: load it with that "
            "version, and save the model before quantizing it, or with its LoRA merged."
        )
    frozen = [path for path, change in changes.items() if not change.get("trainable", True)]
    frozen = config.pop("frozen", frozen)
    policies: Any = keras.dtype_policies.get(config.get("dtype"))
    paths = policies if isinstance(policies, DTypePolicyMap) else ()
    # Others are of a map of the user's own, which stays.
    names = {path: policies[path].name for path in paths if policies[path].quantization_mode}
    if names:
        config["dtype"] = policies.default_policy
    modes = tuple((path, name.partition("_from_")[0]) for path, name in names.items())
    return config, (tuple(frozen), modes)


def apply_state(layer: keras.layers.Layer, state: SublayerState) -> None:
    """Quantizes and freezes the sublayers of a built layer.

    If the layer is not trainable, none of them is. Keras applies `trainable=False` to the weights
    of a layer, but not to sublayers that it creates in `__init__` or `build`, and functional models
    would train them.
    """
    frozen, quantized = state
    sublayers = dict(find_sublayers(layer))
    for path, mode in quantized:
        if path in sublayers:
            sublayers[path].quantize(mode.partition("/")[0])  # of "int4/128"
    for path in frozen if layer.trainable else sublayers:
        if path in sublayers:  # earlier versions had other paths
            sublayers[path].trainable = False


def find_sublayers(layer: keras.layers.Layer, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields all layers in a layer with their paths, each before those that it contains.

    Names are numbered within each layer. Keras numbers those that it makes within the process, so
    they depend on the layers that were created before.
    """
    counts: collections.Counter[str] = collections.Counter()
    values = (x if isinstance(x, (list, tuple)) else [x] for x in vars(layer).values())
    sublayers = {id(x): x for x in itertools.chain(*values) if isinstance(x, keras.layers.Layer)}
    for sublayer in sublayers.values():
        name = re.sub(r"_\d+$", "", sublayer.name)
        number, counts[name] = counts[name], counts[name] + 1
        own_path = f"{path}{name}_{number}" if number else f"{path}{name}"
        yield own_path, sublayer
        yield from find_sublayers(sublayer, f"{own_path}/")


def change_precision(config: Config, policy: str) -> Config:
    """Changes the dtype policy in the configuration of a layer; what is quantized stays so."""
    _, (_, modes) = split_state(config)
    quantized = {path: f"{mode}_from_{policy}" for path, mode in modes}
    return config | {"dtype": _serialize_policies(policy, quantized) if quantized else policy}


def _serialize_policies(default, policies_by_path):
    policies = DTypePolicyMap(default)
    for path, policy in policies_by_path.items():
        policies[path] = policy
    return keras.dtype_policies.serialize(policies)


def _check_quantization(layer):
    """Checks that a sublayer can be quantized again by its mode, which is all that is saved."""
    mode, config = layer.quantization_mode, layer.quantization_config
    if mode in ("int8", "int4", "float8") and _settings(config) == _settings(type(config)()):
        return
    raise ValueError(
        f"{layer.path} is quantized in a way that cannot be loaded: quantize it by the mode alone, "
        '"int8", "int4" or "float8"; or save the model before and quantize it after '
        "loading, or write a SavedModel by model.export."
    )


def _settings(config):
    quantizers = config.weight_quantizer, config.activation_quantizer
    return [x and x.get_config() for x in quantizers], getattr(config, "block_size", None)
