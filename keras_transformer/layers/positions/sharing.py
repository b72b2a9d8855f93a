"""Keeps one what several layers share, such as `Positions`: saved, loaded and cloned."""

import threading
import uuid
import weakref
from typing import Any

import keras

from keras_transformer.layers.changes import PassesTrainableOn
from keras_transformer.typing import Config


class Shareable(PassesTrainableOn):
    """A layer that several others may hold.

    Keras marks what is shared only where it is an attribute of the outermost layer, and only in
    `save`. In `clone_model` and `from_config`, which make one layer after the other, copies of
    layers that share also share, each with the first copy of another one that is still in use.

    Attributes:
        users: How many layers hold it.
    """

    users: int = 0
    _share_id: int | None = None
    _copied_for: frozenset[str] = frozenset()

    def get_config(self) -> Config:
        return super().get_config()  # said here, or Keras would guess from the arguments

    def serialize_for(self, owner: keras.layers.Layer) -> Config:
        """Describes it as part of the configuration of one of those that hold it."""
        config = keras.saving.serialize_keras_object(self)
        if self.users > 1:
            if self._share_id is None:
                self._share_id = uuid.uuid4().int % 2**53  # JSON's largest whole number
            config |= {"shared_object_id": self._share_id, "shared_by": owner.name}
        return config


class _Copies(threading.local):
    """The latest copy of each shared object, as long as it is in use."""

    def __init__(self):
        self.by_id = weakref.WeakValueDictionary()


_COPIES = _Copies()


def deserialize_shared(config: Config) -> Any:
    """Makes what `serialize_for` has described, or finds the copy that others have."""
    made: Any = keras.saving.deserialize_keras_object(config)
    owner = config.get("shared_by")
    if owner is None or keras.saving.deserialize_keras_object(config) is made:
        return made  # shared with none, or found by Keras, which remembers while it loads a file
    copy = _COPIES.by_id.get(config["shared_object_id"])
    if copy is None or owner in copy._copied_for:
        copy = _COPIES.by_id[config["shared_object_id"]] = made
    copy._copied_for |= {owner}
    return copy
