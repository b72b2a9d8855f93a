"""What `fit` and `save` of every backend would accept, and get wrong."""

import inspect
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.typing import Path

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class CheckedFit(Model):
    """Mixed into a `keras.Model` ahead of it: refuses `class_weight`, and `save` in HDF5.

    Keras takes ids `(B, T)` for one-hot rows, and so each sentence for a row of the class that is
    the position of its largest id. Of a model that is not functional, its HDF5 files cannot be
    loaded.
    """

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does, which has the arguments.

        Raises:
            ValueError: If there is a `class_weight`.
        """
        _refuse_class_weight(super().fit, args, kwargs)
        return super().fit(*args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Learns from one batch, as `keras.Model.train_on_batch` does, which has the arguments.

        Raises:
            ValueError: If there is a `class_weight`.
        """
        _refuse_class_weight(super().train_on_batch, args, kwargs)
        return super().train_on_batch(*args, **kwargs)

    def save(self, filepath: Path, *args: Any, **kwargs: Any) -> None:
        """Saves the model, as `keras.Model.save` does, which has the arguments.

        Raises:
            ValueError: If the file is to be HDF5.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"{filepath} would be an HDF5 file, which could not be loaded: use a name that "
                "ends in .keras, or save_weights and a name that ends in .weights.h5."
            )
        super().save(filepath, *args, **kwargs)


def _refuse_class_weight(function, args, kwargs):
    given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    if given.get("class_weight") is not None:
        raise ValueError(
            "class_weight weighs whole rows by one class each, and a sentence has many: pass "
            "sample_weight of shape (B, T), the weight of each target token."
        )
