"""The training loss, the metrics that the progress bar shows beside it, and their names.

Shapes: B batch, T target length, V vocabulary.
"""

import inspect
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_transformer.training.labels import read_labels, sum_dtype, token_weights
from keras_transformer.utils import Config, Nested, Tensor

if TYPE_CHECKING:
    from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of integer labels with label smoothing, averaged over the target tokens.

    Label smoothing ("Attention Is All You Need", §5.4; Szegedy et al., 2016) mixes the label with
    a uniform distribution over the whole vocabulary:
    `(1 − ε)·(−log p(label)) + ε·mean(−log p)`, which equals
    `logsumexp(z) − (1 − ε)·z(label) − ε·mean(z)`. No one-hot labels and no log-probabilities of
    the size of the logits are built. PAD and negative labels do not count, whatever mask the
    logits carry.

    Args:
        label_smoothing: ε, at least 0 and below 1.

    Call arguments:
        y_true: Ids of shape `(B, T)` of any integer type, or whole numbers of a float type. PAD (0)
            and every negative label, as -100 or -1 elsewhere, are ignored.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Optional weights, shape `(B,)` or `(B, T)`.

    Returns:
        Scalar, in nats per token; 0 if there is no token. In a compiled function, which cannot
        raise, NaN if a label is V or above, or not a whole number.

    Raises:
        ValueError: If `label_smoothing` is out of range; if the labels have another shape; outside
            a compiled function, if a label is V or above, or not a whole number.

    Example:

    >>> logits = np.zeros((1, 2, 50), "float32")
    >>> SmoothedCrossEntropy(0.1)(np.array([[7, 0]]), logits)  # log 50
    3.912023
    >>> SmoothedCrossEntropy(0.1)(np.array([[7, -100]]), logits)
    3.912023
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        name: str = "smoothed_cross_entropy",
        reduction: str | None = "mean_with_sample_weight",
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype or sum_dtype())
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be at least 0 and below 1, received {label_smoothing}."
            )
        self.label_smoothing = label_smoothing

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        # Ids stay integers; Keras would convert them to floats of the loss' dtype.
        logits = _without_mask(y_pred)
        size = ops.shape(logits)[-1]
        ids, weights = read_labels(y_true, logits, size, sample_weight, self.dtype)
        return super().__call__(ids, logits, sample_weight=weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        ids = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, self.dtype)
        label_logits = ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
        smoothing = self.label_smoothing
        losses = ops.logsumexp(logits, axis=-1) - (1 - smoothing) * label_logits
        return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses

    def get_config(self) -> Config:
        return super().get_config() | {"label_smoothing": self.label_smoothing}


# Metrics.


class TokenMetric(keras.metrics.Mean):
    """Base class: the mean over target tokens of a value computed from the logits.

    Call arguments:
        y_true: Ids of shape `(B, T)` of any integer type, or whole numbers of a float type. PAD (0)
            and every negative label are ignored. In a compiled function, which cannot raise, a
            label that is V or above, or not a whole number, makes the metric NaN.
        y_pred: Logits of shape `(B, T, V)`, or the `TokenPredictions` of shape `(B, T)` that the
            fused loss computes instead.
        sample_weight: Optional weights, shape `(B,)` or `(B, T)`.
    """

    default_name: str | None = None

    def __init__(
        self, name: str | None = None, dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name or self.default_name, dtype=dtype or sum_dtype())

    def update_state(
        self,
        y_true: Tensor,
        y_pred: "Tensor | TokenPredictions",
        sample_weight: Tensor | None = None,
    ) -> None:
        fused = hasattr(y_pred, "log_probs")
        outputs = ops.expand_dims(y_pred.log_probs, -1) if fused else _without_mask(y_pred)
        size = y_pred.vocabulary_size if fused else ops.shape(outputs)[-1]
        ids, weights = read_labels(y_true, outputs, size, sample_weight, self.dtype)
        values = (
            self.compute_from_predictions(ids, y_pred)
            if fused
            else self.compute_from_logits(ids, outputs)
        )
        # Flat: Keras would first take the mean of each row, including its padding.
        return super().update_state(ops.reshape(values, [-1]), ops.reshape(weights, [-1]))

    def compute_from_logits(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Returns the value of each token, shape `(B, T)`."""
        raise NotImplementedError

    def compute_from_predictions(self, ids: Tensor, predictions: "TokenPredictions") -> Tensor:
        """Returns the same, computed from `TokenPredictions`."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMetric):
    """Share of target tokens that the model, given the true prefix, ranks first.

    Called with ids `(B, T)` and logits `(B, T, V)`; PAD and negative labels do not count. Its name,
    and so the key in Keras' history, is "accuracy".

    Example:

    >>> MaskedAccuracy()(np.array([[1, 0]]), np.array([[[0.0, 9.0], [0.0, 9.0]]]))
    1.0
    """

    default_name = "accuracy"
    _direction = "up"  # read by Keras' EarlyStopping and ModelCheckpoint

    def compute_from_logits(self, ids: Tensor, logits: Tensor) -> Tensor:
        return ops.equal(ops.argmax(logits, axis=-1), ids)

    def compute_from_predictions(self, ids: Tensor, predictions: "TokenPredictions") -> Tensor:
        return predictions.correct


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMetric):
    """`exp` of the mean cross-entropy of the target tokens, without label smoothing.

    Called with ids `(B, T)` and logits `(B, T, V)`; PAD and negative labels do not count.

    Example:

    >>> Perplexity()(np.array([[7, 3, 0]]), np.zeros((1, 3, 50)))
    50.0
    """

    default_name = "perplexity"
    _direction = "down"

    def compute_from_logits(self, ids: Tensor, logits: Tensor) -> Tensor:
        logits = ops.cast(logits, self.dtype)
        label_logits = ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
        return ops.logsumexp(logits, axis=-1) - label_logits

    def compute_from_predictions(self, ids: Tensor, predictions: "TokenPredictions") -> Tensor:
        return -predictions.log_probs

    def result(self) -> Tensor:
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TargetTokens(keras.metrics.Sum):
    """Number of target tokens, PAD and negative labels not counted, seen since the epoch began.

    Call arguments:
        y_true: Ids of shape `(B, T)` of any integer type, or whole numbers of a float type.
        y_pred: Ignored.
        sample_weight: Ignored: a token is a token.

    Example:

    >>> TargetTokens()(np.array([[7, 3, 0]]), None)
    2.0
    """

    def __init__(
        self, name: str = "target_tokens", dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype or sum_dtype())

    def update_state(
        self, y_true: Tensor, y_pred: object, sample_weight: Tensor | None = None
    ) -> None:
        return super().update_state(token_weights(y_true))


def _without_mask(logits):
    """Returns a new tensor without the mask that Keras would apply in addition to the labels'.

    Loss and metrics all do so, such that TensorFlow computes common subexpressions once.
    """
    return ops.squeeze(ops.expand_dims(ops.convert_to_tensor(logits), 0), 0)


# Names.

_BY_NAME = {
    "smoothed_cross_entropy": SmoothedCrossEntropy,
    "masked_accuracy": MaskedAccuracy,
    "perplexity": Perplexity,
    "target_tokens": TargetTokens,
}
CROSSENTROPY = "crossentropy", "ce"  # Keras chooses a cross-entropy by the labels
_BY_NAME |= {kind.__name__: kind for kind in _BY_NAME.values()}


def replace_names(arguments: Nested) -> Nested:
    """Replaces the names of this package's losses and metrics in arguments of `compile` by objects.

    `keras.losses.get` and `keras.metrics.get` do not find registered classes by name, so these
    names work only in models whose `compile` calls this function. As in Keras, a name is that of
    the class or the same in snake case: `"perplexity"`.
    """

    def replace(leaf):
        kind = _BY_NAME.get(leaf) if isinstance(leaf, str) else None
        return kind() if kind else leaf

    return keras.tree.map_structure(replace, arguments)


def refuse_probabilities(arguments: Nested) -> None:
    """Raises for losses and metrics that expect probabilities, in arguments of `compile`."""
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
                "SmoothedCrossEntropy() and Perplexity(), or with from_logits=True and "
                "ignore_class=0. To load a model that was saved with it, use "
                "load_model(path, compile=False)."
            )
