"""Builds a model whose weights depend on no input, at first use."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.typing import Nested, Path

if IS_TENSORFLOW:
    from keras_transformer.kernels.tensorflow import outside_of_traces

if TYPE_CHECKING:  # what it calls, it finds in the class that it is mixed into
    from keras import Model
else:
    Model = object


def _after(prepare: Callable[..., None], name: str) -> Any:
    """The method of `keras.Model` of that name, after something else is done with its arguments."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepare(self, *args, **kwargs)
        return getattr(super(SelfBuilding, self), name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, getattr(keras.Model, name).__doc__
    return method


def _build(model: Any, *args: Any, **kwargs: Any) -> None:
    model.build_if_needed()


def _check(model: Any, x: Nested = None, *args: Any, **kwargs: Any) -> None:
    model.check_arrays(x)


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
        if self.built:
            return
        with contextlib.ExitStack() as scopes:
            if IS_TENSORFLOW:
                scopes.enter_context(outside_of_traces())
                scopes.enter_context(self.distribute_strategy.scope())
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

    count_params = _after(_build, "count_params")
    summary = _after(_build, "summary")
    get_weights = _after(_build, "get_weights")
    set_weights = _after(_build, "set_weights")
    save = _after(_build, "save")
    save_weights = _after(_build, "save_weights")
    load_weights = _after(_build, "load_weights")
    stateless_call = _after(_build, "stateless_call")

    fit = _after(_check, "fit")
    evaluate = _after(_check, "evaluate")
    predict = _after(_check, "predict")
    train_on_batch = _after(_check, "train_on_batch")
    test_on_batch = _after(_check, "test_on_batch")
    predict_on_batch = _after(_check, "predict_on_batch")

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
