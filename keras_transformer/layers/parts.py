"""What a layer is made of, by the paths under which Keras saves it."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import keras


def find_parts(root: keras.layers.Layer) -> tuple[dict[str, Any], set[str]]:
    """Finds all layers, variables and other objects with a state within a layer.

    Args:
        root: The layer, of path "".

    Returns:
        {path: part}, every layer before what it holds; and the paths that weights are saved by: of
        a part in several places, that of the first one, as Keras goes through the attributes.
    """
    parts: dict[str, Any] = {}
    saved: dict[int, str] = {}

    def visit(path, part):
        if isinstance(part, (list, tuple, dict)):
            for name, item in _items(part):
                visit(f"{path}/{name}", item)
        elif _is_part(part):
            known = id(part) in saved
            saved.setdefault(id(part), path)
            for name, value in _attributes(part):
                if not known or isinstance(value, keras.Variable):
                    visit(f"{path}/{name}" if path else name, value)
            parts[path] = part

    visit("", root)
    return dict(reversed(parts.items())), set(saved.values())


def parent_path(path: str, paths: dict[str, Any]) -> str:
    """The path of the layer that holds a part."""
    while path and (path := path.rpartition("/")[0]) not in paths:
        pass
    return path


def _is_part(value):
    """Whether a value is a variable or what Keras saves: metrics and random generators too."""
    return isinstance(value, keras.Variable) or hasattr(type(value), "load_own_variables")


def _attributes(layer: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that a layer has and not every layer, in the order of Keras."""
    if not isinstance(layer, keras.layers.Layer):
        return
    names = {*dir(layer)} - _of_every_layer()
    if isinstance(layer, keras.Model):
        names -= {*dir(keras.Model)} - {"layers"}
    for name in sorted(names, key=lambda name: f"~{name}" if name.startswith("_") else name):
        try:
            yield name, getattr(layer, name)
        except Exception:  # a property that cannot be asked for yet
            continue


@functools.cache
def _of_every_layer():
    return {*dir(keras.layers.Layer(name="any"))}


def _items(container: Any) -> Iterator[tuple[str, Any]]:
    """What a container holds, counted by class."""
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
