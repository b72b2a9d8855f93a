"""The loss and the metrics by their names, for `compile`."""

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
