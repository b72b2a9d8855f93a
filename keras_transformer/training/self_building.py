"""Builds a model whose weights depend on no input, at first use."""

import contextlib
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.typing import Nested, Path

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


class SelfBuilding(Model):
    """Mixed into a `keras.Model` ahead of it, whose `build` needs no shape.

    Keras builds a model when it is first called, and until then refuses to count, save, load or
    export its weights, for it cannot know how many there will be. Here nothing hinders building
    before: not in the constructor, for subclasses set sublayers after `super().__init__()`, but
    whenever something first asks for weights.

    Expects of the class: `input_signature`, a list of Keras' InputSpecs, one for each argument of
    the call that `export` writes; and `check_arrays(x)`, which raises ValueError for arrays that
    a compiled step would take without a word.
    """

    def build_if_needed(self) -> None:
        """Builds the model, where its strategy wants the variables, if that is still to be done."""
        if not self.built:
            own = IS_TENSORFLOW and self.distribute_strategy.scope()
            with own or contextlib.nullcontext():
                self.build()

    def build_added_layers(self) -> None:
        """Builds the layers that a subclass has added, of whose inputs only its call can tell."""
        if all(layer.built for layer in self.layers):
            return
        inputs = keras.tree.map_structure(
            lambda spec: keras.KerasTensor(spec.shape, spec.dtype), self.input_signature
        )
        try:
            self.compute_output_spec(*inputs)
        except Exception:
            # A subclass may be called with something else: then its first call builds them.
            return

    def count_params(self) -> int:
        """Counts the weights' entries."""
        self.build_if_needed()
        return super().count_params()

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints the layers and their weights, as `keras.Model.summary` does."""
        self.build_if_needed()
        super().summary(*args, **kwargs)

    def get_weights(self) -> list[Any]:
        """The weights as NumPy arrays."""
        self.build_if_needed()
        return super().get_weights()

    def set_weights(self, weights: list[Any]) -> None:
        """Sets the weights to NumPy arrays."""
        self.build_if_needed()
        super().set_weights(weights)

    def save(self, filepath: Path, *args: Any, **kwargs: Any) -> None:
        """Saves the model, as `keras.Model.save` does."""
        self.build_if_needed()
        super().save(filepath, *args, **kwargs)

    def save_weights(self, filepath: Path, *args: Any, **kwargs: Any) -> None:
        """Saves the weights, as `keras.Model.save_weights` does."""
        self.build_if_needed()
        super().save_weights(filepath, *args, **kwargs)

    def load_weights(self, filepath: Path, *args: Any, **kwargs: Any) -> None:
        """Loads weights, as `keras.Model.load_weights` does."""
        self.build_if_needed()
        super().load_weights(filepath, *args, **kwargs)

    def export(
        self,
        filepath: Path,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Nested = None,
        **kwargs: Any,
    ) -> None:
        """Exports the call, as `keras.Model.export` does, on `input_signature`.

        A search from text to text is what `kt.export(translator, base)` exports.
        """
        self.build_if_needed()
        # Keras would take ids for floats.
        signature = self.input_signature if input_signature is None else input_signature
        super().export(filepath, format, verbose, signature, **kwargs)

    def fit(self, x: Nested = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does."""
        self.build_if_needed()  # before callbacks restore weights
        self.check_arrays(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Nested = None, *args: Any, **kwargs: Any) -> Any:
        """Scores, as `keras.Model.evaluate` does."""
        self.check_arrays(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Nested, *args: Any, **kwargs: Any) -> Nested:
        """Computes outputs, as `keras.Model.predict` does."""
        self.check_arrays(x)
        return super().predict(x, *args, **kwargs)
