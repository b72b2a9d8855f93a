"""What `fit` and `save` of every backend would accept, and get wrong."""

import inspect
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.training.token_weights import wide_sums
from keras_transformer.typing import Path

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class CheckedFit(Model):
    """Mixed into a `keras.Model` ahead of it: checks labels, refuses `class_weight` and HDF5 files.

    Keras takes ids `(B, T)` for one-hot rows, and so each sentence for a row of the class that is
    the position of its largest id. A model that has a method `check_labels(y)` checks by it the
    arrays of `fit`, `evaluate`, `train_on_batch` and `test_on_batch`: a compiled step cannot raise.
    HDF5 files of a model that is not functional cannot be loaded.
    """

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configures the training, as `keras.Model.compile` does; float32 or wider sums losses."""
        with wide_sums():
            super().compile(*args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does, which has the arguments.

        Raises:
            ValueError: If there is a `class_weight`; if the model refuses labels.
        """
        _check(self, super().fit, args, kwargs)
        return super().fit(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Scores, as `keras.Model.evaluate` does, which has the arguments.

        Raises:
            ValueError: If the model refuses labels.
        """
        _check(self, super().evaluate, args, kwargs)
        return super().evaluate(*args, **kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Learns from one batch, as `keras.Model.train_on_batch` does, which has the arguments.

        Raises:
            ValueError: If there is a `class_weight`; if the model refuses labels.
        """
        _check(self, super().train_on_batch, args, kwargs)
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

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Scores one batch, as `keras.Model.test_on_batch` does, which has the arguments.

        Raises:
            ValueError: If the model refuses labels.
        """
        _check(self, super().test_on_batch, args, kwargs)
        return super().test_on_batch(*args, **kwargs)


def _check(model, function, args, kwargs):
    given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
    if given.get("class_weight") is not None:
        raise ValueError(
            "class_weight weighs whole rows by one class each, and a sentence has many: pass "
            "sample_weight of shape (B, T), the weight of each target token."
        )
    if hasattr(model, "check_labels"):
        validation = given.get("validation_data")
        validation = validation if isinstance(validation, (tuple, list)) else (None, None)
        for y in (given.get("y"), *validation[1:2]):
            if y is not None:
                model.check_labels(y)
