"""What Keras does not preserve when a layer is saved, loaded or cloned.

`KeepsChanges` preserves changes made to sublayers, such as LoRA. `Shareable` preserves the sharing
of a sublayer by several layers. `find_parts` lists the layers and variables in a layer.
"""

import functools
import re
import threading
import uuid
import weakref
from collections.abc import Iterator
from typing import Any, Self

import keras

from keras_transformer.utils import Config

CHANGES = "changes"  # the key in a layer's configuration
# Variables that quantization and LoRA freeze.
KERNEL = ("kernel", "_kernel", "kernel_scale", "kernel_zero", "g_idx")
NEVER_TRAINABLE = ("suppressed",)  # variables that are created so


class FreezesSublayers(keras.layers.Layer):
    """Base of layers whose sublayers are not trainable if the layer is not.

    Keras applies `trainable=False` to the weights of a layer, but not to sublayers created in
    `__init__` or `build`: functional models would train these.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        values = value if isinstance(value, (list, tuple)) else [value]
        layers = [layer for layer in values if isinstance(layer, keras.layers.Layer)]
        if layers and not self.trainable:
            for layer in layers:
                layer.trainable = False


class KeepsChanges(FreezesSublayers):
    """Base of layers and models whose configuration includes the changes made to sublayers.

    The changes are, for each layer and variable within, by path: `trainable` if it differs from
    that of the layer around it, quantization and LoRA. Keras saves those of the layer itself, but
    not those of its sublayers. `from_config` builds the layer and applies the changes, so that
    `load_model`, `clone_model` and optimizers find the same variables.
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
            apply_changes(layer, changes)
        return layer


def find_changes(root: keras.layers.Layer) -> Config | None:
    """Returns the changes by path and how the layer was built, or None without changes."""
    (parts, saved), found = find_parts(root), {}
    flags: dict[str, bool] = {}
    for path, part in parts.items():
        if not isinstance(part, (keras.layers.Layer, keras.Variable)):
            continue
        parent = parent_path(path, flags)
        change = _get_conversion(part)
        flags[path] = part.trainable
        if part.trainable != (flags[parent] and not _is_frozen(path, parts[parent])):
            change["trainable"] = part.trainable
        if path and path in saved and change:
            found[path] = change
    if not found:
        return None
    build = root.get_build_config() if root.built and not _builds_itself(root) else None
    return {"parts": found, **({"build": build} if build else {})}


def _get_conversion(part):
    """Returns the quantization and LoRA of a layer, as entries of its change."""
    change = {}
    config = getattr(part, "quantization_config", None)
    if config and config.mode in ("gptq", "awq"):
        raise ValueError(
            f"{part.path} is quantized by {config.mode.upper()}, which Keras cannot load: save the "
            "model before and quantize it after loading, or write a SavedModel by model.export."
        )
    if config:
        by_default = config.get_config() == type(config)().get_config()
        serialized = keras.saving.serialize_keras_object(config)
        change["quantization"] = config.mode if by_default else serialized
    if getattr(part, "lora_enabled", False):
        change |= {"lora_rank": part.lora_rank, "lora_alpha": part.lora_alpha}
    return change


def _is_frozen(path, layer):
    """Returns whether a variable is not trainable by itself, or by quantization or LoRA."""
    name = path.rpartition("/")[2]
    if name not in KERNEL:
        return name in NEVER_TRAINABLE
    change = _get_conversion(layer)
    return "lora_rank" in change or change.get("quantization") not in (None, "float8")


def _builds_itself(root):
    return hasattr(root, "build_if_needed")


def apply_changes(root: keras.layers.Layer, changes: Config) -> None:
    """Builds a layer and applies the changes that `find_changes` returned for another one."""
    if _builds_itself(root):
        root.build_if_needed()
    elif not root.built:
        root.build_from_config(changes.get("build"))
    changes = changes["parts"]
    for path, part in find_parts(root)[0].items():
        _convert_sublayer(part, path, changes.get(path, {}))
    parts = find_parts(root)[0]
    flags: dict[str, bool] = {}
    for path in changes:
        if not isinstance(parts.get(path), (keras.layers.Layer, keras.Variable)):
            raise ValueError(
                f"The configuration of {root.name!r} changes {path!r}, which is not one of its "
                "layers or variables: load it with the same classes as it was saved with."
            )
    for path, part in parts.items():
        if isinstance(part, (keras.layers.Layer, keras.Variable)):
            trainable = flags[parent_path(path, flags)] if path else part.trainable
            if isinstance(part, keras.Variable):  # some are never trainable
                trainable = trainable and part.trainable
            trainable = bool(changes.get(path, {}).get("trainable", trainable))
            if part.trainable != trainable:
                part.trainable = trainable
            flags[path] = trainable


def _convert_sublayer(part, path, change):
    """Quantizes a sublayer and enables LoRA."""
    config, rank = change.get("quantization"), change.get("lora_rank")
    needed = {"quantize": config, "enable_lora": rank}
    for method, value in needed.items():
        if value and not callable(getattr(part, method, None)):
            raise ValueError(
                f"The configuration changes {path!r} by {method}, which {type(part).__name__} "
                "does not have: load it with the same classes as it was saved with."
            )
    if config and not part.quantization_mode:
        part.quantize(config=keras.saving.deserialize_keras_object(config))
    if rank and not part.lora_enabled:
        part.enable_lora(rank, lora_alpha=change.get("lora_alpha"))


# Parts.


def find_parts(root: keras.layers.Layer) -> tuple[dict[str, Any], set[str]]:
    """Finds all layers, variables and other stateful objects inside a layer.

    Args:
        root: The layer; its path is "".

    Returns:
        {path: part}, every layer before its contents; and the paths under which Keras saves
        weights: for a part with several paths, the first one in the order in which Keras visits
        attributes.
    """
    parts: dict[str, Any] = {}
    saved: dict[int, str] = {}

    def visit(path, part):
        if isinstance(part, (list, tuple, dict)):
            for name, item in _iterate_container(part):
                visit(f"{path}/{name}", item)
        elif _is_part(part):
            known = id(part) in saved
            saved.setdefault(id(part), path)
            for name, value in _iterate_attributes(part):
                if not known or isinstance(value, keras.Variable):
                    visit(f"{path}/{name}" if path else name, value)
            parts[path] = part

    visit("", root)
    return dict(reversed(parts.items())), set(saved.values())


def parent_path(path: str, paths: dict[str, Any]) -> str:
    """Returns the path of the layer that contains a part."""
    while path and (path := path.rpartition("/")[0]) not in paths:
        pass
    return path


def _is_part(value):
    """Returns whether a value is a variable or an object that Keras saves, such as a metric."""
    return isinstance(value, keras.Variable) or hasattr(type(value), "load_own_variables")


def _iterate_attributes(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the attributes that not every layer has, in the order in which Keras saves them."""
    if not isinstance(layer, keras.layers.Layer):
        return
    names = {*dir(layer)} - _base_layer_attributes()
    if isinstance(layer, keras.Model):
        names -= {*dir(keras.Model)} - {"layers"}
    for name in sorted(names, key=lambda name: f"~{name}" if name.startswith("_") else name):
        try:
            yield name, getattr(layer, name)
        except Exception:  # a property that is not available yet
            continue


@functools.cache
def _base_layer_attributes():
    return {*dir(keras.layers.Layer(name="any"))}


def _iterate_container(container: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts in a container, under the names that Keras gives them."""
    counts: dict[str, int] = {}
    for item in container.values() if isinstance(container, dict) else container:
        if isinstance(item, (list, tuple, dict)):
            name = "container"
        elif _is_part(item):
            name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", type(item).__name__))
            name = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
        else:
            continue
        count = counts[name] = counts.get(name, -1) + 1
        yield f"{name}_{count}" if count else name, item


# Sharing.


class Shareable(FreezesSublayers):
    """A layer that may be a sublayer of several layers.

    Keras records that a sublayer is shared only for attributes of the outermost layer, and only in
    `save`. `clone_model` and `from_config` create one layer after another; there, the copies of
    layers that share a sublayer share its first copy, as long as that is in use.

    Attributes:
        users: Number of layers that contain it.
    """

    users: int = 0
    _share_id: int | None = None
    _copied_for: frozenset[str] = frozenset()

    def get_config(self) -> Config:
        return super().get_config()  # without this method Keras would guess from the arguments

    def serialize_for(self, owner: keras.layers.Layer) -> Config:
        """Serializes it as part of the configuration of a layer that contains it."""
        config = keras.saving.serialize_keras_object(self)
        if self.users > 1:
            if self._share_id is None:
                self._share_id = uuid.uuid4().int % 2**53  # JSON keeps integers up to this exact
            config |= {"shared_object_id": self._share_id, "shared_by": owner.name}
        return config


class _Copies(threading.local):
    """The latest copy of each shared layer, as long as it is in use."""

    def __init__(self) -> None:
        self.by_id: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


_COPIES = _Copies()


def deserialize_shared(config: Config) -> Any:
    """Creates a layer from the result of `serialize_for`, or returns the copy to be shared."""
    layer: Any = keras.saving.deserialize_keras_object(config)
    owner = config.get("shared_by")
    if owner is None or keras.saving.deserialize_keras_object(config) is layer:
        return layer  # not shared, or Keras keeps it shared while it loads a file
    copy = _COPIES.by_id.get(config["shared_object_id"])
    if copy is None or owner in copy._copied_for:
        copy = _COPIES.by_id[config["shared_object_id"]] = layer
    copy._copied_for |= {owner}
    return copy
