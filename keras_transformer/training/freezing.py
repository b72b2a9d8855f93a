"""What is frozen stays frozen, in what is saved and loaded too."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

import keras

from keras_transformer.training.frozen_vectors import check_frozen_vectors
from keras_transformer.typing import Config

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


EMBEDDINGS = ".embeddings"  # after the name of a layer: of that alone, not of the whole layer


class Freezing(Model):
    """Mixed into a `keras.Model` ahead of it: its config names the layers that are not trainable.

    And those of which the embeddings alone are not.

    Of a subclassed model Keras saves `trainable` of the whole alone: loaded, its frozen layers
    learn again, and the optimizer, which then finds more variables than were saved, starts anew.

    Layers are those that are attributes of the model, such as `model.encoder`. To be mixed in with
    `SelfBuilding`.
    """

    def get_config(self) -> Config:
        layers = _layers(self)
        frozen = [name for name, layer in layers.items() if not layer.trainable]
        frozen += [
            name + EMBEDDINGS
            for name, layer in layers.items()
            if layer.trainable and _keeps_embeddings(layer)
        ]
        return super().get_config() | ({"frozen": frozen} if frozen else {})

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config = dict(config)
        frozen = config.pop("frozen", [])
        model = super().from_config(config)
        if frozen:
            model.build_if_needed()  # layers made later would not be frozen
        layers = _layers(model)
        for name in frozen:
            layer = layers.get(name.removesuffix(EMBEDDINGS))
            if layer is None:
                raise ValueError(f"The configuration freezes {name!r}, which is no layer of it.")
            (layer.embeddings if name.endswith(EMBEDDINGS) else layer).trainable = False
        return model


def _layers(model):
    return {k: v for k, v in vars(model).items() if isinstance(v, keras.layers.Layer)}


def _keeps_embeddings(layer):
    """Tells whether of a layer that learns the embeddings do not; learned positions may."""
    table = getattr(layer, "embeddings", None)
    return isinstance(table, keras.Variable) and not table.trainable


def freeze(model: keras.Model, names: Iterable[str]) -> None:
    """Has parts of a `Transformer` keep their weights; to be called before `compile`.

    Args:
        model: A `Transformer`.
        names: Some of `presets.FREEZABLE`: the stacks of layers `encoder` and `decoder`, and
            `source-embeddings`.
    """
    for name in names:
        getattr(model, {"source-embeddings": "source_embedding"}.get(name, name)).trainable = False


def freeze_vectors(model: keras.Model, sides: Iterable[str]) -> None:
    """Has embeddings keep what they are, such as word vectors; to be called before `compile`.

    Learned positions, which are weights of the same layer, go on learning.

    Args:
        model: A `Transformer`, built.
        sides: `"source"`, `"target"` or both.

    Raises:
        ValueError: If that would freeze the softmax.
    """
    for side in sides:
        check_frozen_vectors(side, model.share_embeddings)
        getattr(model, f"{side}_embedding").embeddings.trainable = False
