"""What has been changed inside a layer is kept: by what is saved, loaded and cloned."""

from typing import Any, Self

import keras

from keras_transformer.layers.parts import find_parts, parent_path
from keras_transformer.typing import Config

CHANGES = "changes"  # the key in a layer's configuration
# Variables that quantization and LoRA do not train.
KERNEL = ("kernel", "_kernel", "kernel_scale", "kernel_zero", "g_idx")


class PassesTrainableOn(keras.layers.Layer):
    """What is attached to a layer that is not trainable is not either, as Keras has it of weights.

    Keras' own layers make sublayers in `__init__` or `build` that learn though the layer was given
    `trainable=False`: in functional models, which ask each weight.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        values = value if isinstance(value, (list, tuple)) else [value]
        layers = [layer for layer in values if isinstance(layer, keras.layers.Layer)]
        if layers and not self.trainable:
            for layer in layers:
                layer.trainable = False


class KeepsChanges(PassesTrainableOn):
    """Mixed into a layer or model ahead of Keras' class: its configuration holds what was changed.

    That is, of every layer and variable within, by path: `trainable` where it differs from that of
    the layer around it, quantization and LoRA. Keras keeps those of a layer that is saved by
    itself, and loses those of its sublayers. `from_config` then builds the layer and makes the
    changes, so that `load_model`, `clone_model` and an optimizer meet the same variables.
    """

    def get_config(self) -> Config:
        changes = find_changes(self)
        return super().get_config() | ({CHANGES: changes} if changes else {})

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config = dict(config)
        changes = config.pop(CHANGES, None)
        layer = super().from_config(config)
        if changes:
            make_changes(layer, changes)
        return layer


def find_changes(root: keras.layers.Layer) -> Config | None:
    """The changes by path, and how the layer was built; None where there are none."""
    (parts, saved), found = find_parts(root), {}
    flags: dict[str, bool] = {}
    for path, part in parts.items():
        if not isinstance(part, (keras.layers.Layer, keras.Variable)):
            continue
        parent = parent_path(path, flags)
        change = _conversion(part)
        flags[path] = part.trainable
        if part.trainable != (flags[parent] and not _is_fixed(path, parts[parent])):
            change["trainable"] = part.trainable
        if path and path in saved and change:
            found[path] = change
    if not found:
        return None
    build = root.get_build_config() if root.built and not _builds_itself(root) else None
    return {"parts": found, **({"build": build} if build else {})}


def _conversion(part):
    """The quantization and LoRA of a layer, as keys of its change."""
    change = {}
    config = getattr(part, "quantization_config", None)
    if config:
        by_default = config.get_config() == type(config)().get_config()
        serialized = keras.saving.serialize_keras_object(config)
        change["quantization"] = config.mode if by_default else serialized
    if getattr(part, "lora_enabled", False):
        change |= {"lora_rank": part.lora_rank, "lora_alpha": part.lora_alpha}
    return change


def _is_fixed(path, layer):
    """Whether quantization or LoRA has frozen a variable of a layer."""
    if path.rpartition("/")[2] not in KERNEL:
        return False
    change = _conversion(layer)
    return "lora_rank" in change or change.get("quantization") not in (None, "float8")


def _builds_itself(root):
    return hasattr(root, "build_if_needed")


def make_changes(root: keras.layers.Layer, changes: Config) -> None:
    """Builds a layer and changes it as another one like it was.

    Raises:
        ValueError: If it has no such part, or one that cannot be changed so.
    """
    if _builds_itself(root):
        root.build_if_needed()
    elif not root.built:
        root.build_from_config(changes.get("build"))
    changes = changes["parts"]
    for path, part in find_parts(root)[0].items():
        _convert(part, path, changes.get(path, {}))
    parts = find_parts(root)[0]
    flags: dict[str, bool] = {}
    for path in changes:
        if not isinstance(parts.get(path), (keras.layers.Layer, keras.Variable)):
            raise ValueError(
                f"The configuration of {root.name!r} changes {path!r}, which is not a layer or "
                "variable of it: load it with the classes that it was saved with."
            )
    for path, part in parts.items():
        if isinstance(part, (keras.layers.Layer, keras.Variable)):
            trainable = flags[parent_path(path, flags)] if path else part.trainable
            if isinstance(part, keras.Variable):  # some are not trainable wherever they are
                trainable = trainable and part.trainable
            trainable = bool(changes.get(path, {}).get("trainable", trainable))
            if part.trainable != trainable:
                part.trainable = trainable
            flags[path] = trainable


def _convert(part, path, change):
    """Quantizes a sublayer and enables LoRA."""
    config, rank = change.get("quantization"), change.get("lora_rank")
    needed = {"quantize": config, "enable_lora": rank}
    for method, value in needed.items():
        if value and not callable(getattr(part, method, None)):
            raise ValueError(
                f"The configuration changes {path!r} by {method}, which {type(part).__name__} "
                "does not have: load it with the classes that it was saved with."
            )
    if config and not part.quantization_mode:
        part.quantize(config=keras.saving.deserialize_keras_object(config))
    if rank and not part.lora_enabled:
        part.enable_lora(rank, lora_alpha=change.get("lora_alpha"))
