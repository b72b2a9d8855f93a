"""What the files of a model say beside its weights: their format, and whose positions those are."""

from typing import TYPE_CHECKING, Any, Self

import keras
import numpy as np

from keras_transformer.layers.changes import CHANGES
from keras_transformer.layers.parts import find_parts, parent_path
from keras_transformer.options import FORMAT, check_format
from keras_transformer.position_schemes import ABSOLUTE
from keras_transformer.typing import Config

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object

OF_TRAINING = {"optimizer", "seed_generator"}  # what need not be in the model that is loaded
NAME = "positions"  # of the entry beside the weights


class StoredFormat(Model):
    """Mixed into a `keras.Model` ahead of it: refuses files of another format or other positions.

    Some positions have no weights, so that files of one would load into a model of another without
    a word. Of those that are added to embeddings, files say nothing, as they always have.

    Expects of the class: `positions`, the name of a scheme.
    """

    positions: str

    def get_config(self) -> Config:
        return super().get_config() | {"format": FORMAT}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config = dict(config)
        check_format("The model's file", config.pop("format", None))
        frozen = config.pop("frozen", None)  # as earlier versions named what does not learn
        if frozen:
            paths = [name.replace(".", "/") for name in frozen]
            config[CHANGES] = {"parts": {path: {"trainable": False} for path in paths}}
        return super().from_config(config)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.positions not in ABSOLUTE:
            store[NAME] = np.frombuffer(self.positions.encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        entries = {key: store[key] for key in store.keys()}
        found: tuple[str, ...] = ABSOLUTE
        if NAME in entries:
            found = (np.asarray(entries.pop(NAME)).astype("uint8").tobytes().decode(),)
        if self.positions not in found:
            raise ValueError(
                f"The file has weights of a model whose positions are {' or '.join(found)}, this "
                f"one has {self.positions}: make it with positions={found[0]!r}."
            )
        _check_left_over(self, store)
        super().load_own_variables(entries)


def _check_left_over(model, store):
    """Refuses a file that holds weights of layers that the model does not have.

    Raises:
        ValueError: If it does, which Keras takes for a warning where `skip_mismatch=True`.
    """
    parts, saved = find_parts(model)
    weights = [path for path in saved if isinstance(parts[path], keras.Variable)]
    groups = _groups(store)
    if not groups.issuperset(parent_path(path, parts) for path in weights):
        return  # Keras says what is missing, or the model is a part of another one
    inner = {path for path in saved if not isinstance(parts[path], keras.layers.Layer)}
    known = {prefix for path in saved for prefix in _prefixes(path)}
    left_over = {
        next(prefix for prefix in _prefixes(group) if prefix not in known)
        for group in groups - saved
        if not (OF_TRAINING & {*group.split("/")} or inner & {*_prefixes(group)})
    }
    if left_over:
        names = sorted(left_over)
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise ValueError(
            f"The file holds weights that {model.name!r} does not have ({', '.join(names[:5])}"
            f"{more}): make a model of the same arguments, or load what fits by load_weights(…, "
            "skip_mismatch=True)."
        )


def _groups(store):
    """The paths of the layers that a file holds weights of."""
    names = list(getattr(store, "sharding_config", {}).get("weight_map", []))
    if not names and hasattr(store, "h5_file"):
        store.h5_file.visit(names.append)
    paths = {f"/{name.strip('/')}/".rpartition("/vars/")[0] for name in names if "vars" in name}
    return {path.strip("/") for path in paths}


def _prefixes(path):
    """a, a/b, a/b/c of a/b/c."""
    parts = path.split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]
