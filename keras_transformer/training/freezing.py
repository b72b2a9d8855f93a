"""What is frozen stays frozen, in what is saved and loaded too."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

import keras

from keras_transformer.typing import Config

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class Freezing(Model):
    """Mixed into a `keras.Model` ahead of it: its config names the layers that are not trainable.

    Of a subclassed model Keras saves `trainable` of the whole alone: loaded, its frozen layers
    learn again, and the optimizer, which then finds more variables than were saved, starts anew.

    Layers are those that are attributes of the model, such as `model.encoder`. To be mixed in with
    `SelfBuilding`.
    """

    def get_config(self) -> Config:
        frozen = [
            name
            for name, layer in vars(self).items()
            if isinstance(layer, keras.layers.Layer) and not layer.trainable
        ]
        return super().get_config() | ({"frozen": frozen} if frozen else {})

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config = dict(config)
        frozen = config.pop("frozen", [])
        model = super().from_config(config)
        if frozen:
            model.build_if_needed()  # layers made later would not be frozen
        for name in frozen:
            getattr(model, name).trainable = False
        return model


def freeze(model: keras.Model, names: Iterable[str]) -> None:
    """Has parts of a `Transformer` keep their weights; to be called before `compile`.

    Args:
        model: A `Transformer`.
        names: Some of `presets.FREEZABLE`: the stacks of layers `encoder` and `decoder`, and
            `source-embeddings`.
    """
    for name in names:
        getattr(model, {"source-embeddings": "source_embedding"}.get(name, name)).trainable = False
