"""What the files of a model say beside its weights: their format, and whose positions those are."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from keras_transformer.position_schemes import ABSOLUTE
from keras_transformer.presets import FORMAT, check_format
from keras_transformer.typing import Config

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object

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
        super().load_own_variables(entries)
