"""The loss and the metrics by their names, for `compile`."""

import inspect

import keras

from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import MaskedAccuracy, Perplexity, TargetTokens
from keras_transformer.typing import Nested

_BY_NAME = {
    "smoothed_cross_entropy": SmoothedCrossEntropy,
    "masked_accuracy": MaskedAccuracy,
    "perplexity": Perplexity,
    "target_tokens": TargetTokens,
}
CROSSENTROPY = "crossentropy", "ce"  # by which Keras chooses one
_BY_NAME |= {kind.__name__: kind for kind in _BY_NAME.values()}


def replace_names(arguments: Nested) -> Nested:
    """Puts this package's losses and metrics in the place of their names.

    Keras looks names up in tables of its own, where registered classes are not (`keras.losses.get`,
    `keras.metrics.get`): so they hold for the models whose `compile` calls this.

    Args:
        arguments: Those of `compile`, nested in any way. A name is the class' own or, as Keras has
            both, in snake case: `"perplexity"`.

    Returns:
        The same with new objects for names, called as they were asked for; other strings stay.
    """

    def replace(leaf):
        kind = _BY_NAME.get(leaf) if isinstance(leaf, str) else None
        return kind(name=leaf) if kind else leaf

    return keras.tree.map_structure(replace, arguments)


def refuse_probabilities(arguments: Nested) -> None:
    """Refuses losses and metrics that would take logits for probabilities, and hardly learn.

    Args:
        arguments: Those of a model's `compile` whose outputs are logits, nested in any way.

    Raises:
        ValueError: If one of them has `from_logits=False`, which is Keras' default.
    """
    for leaf in keras.tree.flatten(arguments):
        found = leaf
        if isinstance(leaf, str):
            try:
                found = keras.losses.get(
                    "categorical_crossentropy" if leaf in CROSSENTROPY else leaf
                )
            except ValueError:  # not the name of a loss
                continue
        if inspect.isfunction(found):
            default = inspect.signature(found).parameters.get("from_logits")
            from_logits = default.default if default else None
        else:
            from_logits = getattr(found, "from_logits", None)
        if from_logits is False:
            name = leaf if isinstance(leaf, str) else getattr(leaf, "name", found)
            raise ValueError(
                f"The model returns logits, {name} expects probabilities: compile with "
                "SmoothedCrossEntropy() and Perplexity(), or with an object made by "
                "from_logits=True, ignore_class=0. A model that was saved with it is loaded by "
                "load_model(path, compile=False)."
            )
