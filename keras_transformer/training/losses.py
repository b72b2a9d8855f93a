"""The training loss, the metrics that the progress bar shows beside it, and their labels.

Shapes: B batch, T target length, V vocabulary.
"""

from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.backend import values_of
from keras_transformer.layers.positional_embedding import IDS_SCOPE
from keras_transformer.presets.options import SHARE, check_value
from keras_transformer.special_ids import PAD
from keras_transformer.utils import Config, Nested, Tensor

if TYPE_CHECKING:
    from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions

# Name scope of the operations that fail if a graph runs with invalid labels.
LABELS_SCOPE = "checked_labels"
TOKENIZE = "tokenize with the vocabulary that the model was built for"
MAKE_LABELS = (
    "from padded ids (batch, length), make target inputs ids[:, :-1] and labels ids[:, 1:]"
)


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
        check_value("label_smoothing", label_smoothing, SHARE)
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
    """Base class: the mean over target tokens of a value computed from the logits `(B, T, V)`.

    Instead of logits, it takes `TokenPredictions`, `(B, T)`, which the fused loss computes.
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
        values = self.compute(ids, y_pred if fused else outputs)
        # Flat: Keras would first take the mean of each row, including its padding.
        return super().update_state(ops.reshape(values, [-1]), ops.reshape(weights, [-1]))

    def compute(self, ids: Tensor, outputs: "Tensor | TokenPredictions") -> Tensor:
        """Returns the value of each token, shape `(B, T)`."""
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

    def compute(self, ids: Tensor, outputs: "Tensor | TokenPredictions") -> Tensor:
        if hasattr(outputs, "correct"):
            return outputs.correct
        return ops.equal(ops.argmax(outputs, axis=-1), ids)


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

    def compute(self, ids: Tensor, outputs: "Tensor | TokenPredictions") -> Tensor:
        if hasattr(outputs, "log_probs"):
            return -outputs.log_probs
        logits = ops.cast(outputs, self.dtype)
        label_logits = ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
        return ops.logsumexp(logits, axis=-1) - label_logits

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


def sum_dtype() -> str:
    """Returns the dtype of sums over tokens: float32, or Keras' floatx if that is wider.

    float16 ends at 65,504, and skips integers beyond 2,048; bfloat16 beyond 256.
    """
    return "float64" if keras.config.floatx() == "float64" else "float32"


# Labels.


def token_weights(
    labels: Tensor,
    sample_weight: Tensor | None = None,
    dtype: str = "float32",
    vocabulary_size: int | Tensor | None = None,
) -> Tensor:
    """Returns the weights `(B, T)` of labels: 0 for PAD and negative labels.

    `sample_weight` has shape `(B,)` or `(B, T)`. With `vocabulary_size`, invalid labels get weight
    NaN: a graph may not raise.
    """
    labels = _cast_labels(labels)
    weights = ops.cast(ops.greater(labels, PAD), dtype)
    if vocabulary_size is not None:
        invalid = ops.greater_equal(labels, vocabulary_size)
        if keras.backend.is_float_dtype(labels.dtype):
            invalid = ops.logical_or(invalid, ops.not_equal(labels, ops.floor(labels)))
        weights = ops.where(invalid, ops.cast(float("nan"), dtype), weights)
    if sample_weight is None:
        return weights
    given = ops.cast(sample_weight, dtype)
    shape, expected = tuple(given.shape), tuple(labels.shape)
    if not _shapes_match(shape, expected[: len(shape)], 1):
        raise ValueError(
            f"sample_weight must have shape (batch,) or (batch, length), received {shape} for "
            f"labels of shape {expected}."
        )
    for _ in expected[len(shape) :]:
        given = ops.expand_dims(given, -1)
    return weights * given


def read_labels(
    labels: Tensor,
    outputs: Tensor,
    vocabulary_size: int | Tensor,
    sample_weight: Tensor | None = None,
    dtype: str = "float32",
) -> tuple[Tensor, Tensor]:
    """Returns ids, PAD for labels that do not count, and weights of the labels of `(B, T, …)`.

    In a compiled function, which cannot raise, an invalid label has weight NaN.
    """
    labels = _cast_labels(labels)
    shape = ops.shape(outputs)[:-1]
    received, expected = tuple(labels.shape), tuple(outputs.shape)[:-1]
    if len(expected) < 2:
        raise ValueError(
            "Outputs must be logits of shape (batch, length, vocabulary), received shape "
            f"{tuple(outputs.shape)}: for classes, use Keras' own losses and metrics."
        )
    if not _shapes_match(received, expected):
        raise ValueError(
            "Labels must hold one id for each position of the outputs, with shape "
            f"{expected}, received shape {received}: {MAKE_LABELS}."
        )
    _check_labels(labels, vocabulary_size)
    with keras.name_scope(LABELS_SCOPE):
        unknown = None in received + expected
        if unknown and not any(size is None for size in shape):  # None for KerasTensors
            # A sum of two tensors compares their shapes when the graph runs.
            labels = ops.sum(ops.stack([labels, ops.zeros(shape, labels.dtype)]), axis=0)
        ids = ops.cast(ops.where(ops.greater(labels, PAD), labels, PAD), "int32")
        # A lookup: on a CPU it raises; elsewhere it replaces invalid labels by valid ids.
        ids = ops.take(ops.arange(vocabulary_size, dtype="int32"), ids, axis=0)
    return ids, token_weights(labels, sample_weight, dtype, vocabulary_size)


def _check_labels(labels, vocabulary_size):
    """Checks labels, if their values are known: not in a graph."""
    values = values_of(labels)
    if values is None:
        return
    invalid = values[(values != np.floor(values)) | (values >= vocabulary_size)]
    if invalid.size:
        raise ValueError(
            f"Labels must be whole numbers below {vocabulary_size}, the size of the vocabulary, "
            f"received the label {invalid[0]}: {TOKENIZE}."
        )


def explain_failure(message: str) -> str | None:
    """Returns the error about a graph that failed with invalid ids or labels; None for others."""
    reason = message.partition("\n\t [[")[0].splitlines()[-1]
    if LABELS_SCOPE in message:
        return (
            "A batch has labels that are not below the size of the vocabulary, or not one for each "
            f"position of the outputs ({reason}): {TOKENIZE}, and {MAKE_LABELS}."
        )
    if IDS_SCOPE in message:
        return f"A batch has ids outside the vocabulary ({reason}): {TOKENIZE}."
    return None


def _cast_labels(labels):
    """Casts labels to a dtype that holds any id."""
    labels = labels if hasattr(labels, "dtype") else np.asarray(labels)
    dtype = keras.backend.standardize_dtype(labels.dtype)
    if dtype in ("bool", "int8", "uint8", "int16", "uint16"):
        dtype = "int32"
    return ops.cast(labels, "float32" if dtype in ("float16", "bfloat16") else dtype)


def _shapes_match(shape, expected, *others):
    return len(shape) == len(expected) and all(
        size in (None, *others) or other in (None, size)
        for size, other in zip(shape, expected, strict=True)
    )


def refuse_probabilities(arguments: Nested) -> None:
    """Raises for losses and metrics that expect probabilities, in arguments of `compile`."""
    for leaf in keras.tree.flatten(arguments):
        name = leaf if isinstance(leaf, str) else getattr(leaf, "__name__", "")
        is_keras_own = name is leaf or getattr(keras.losses, name, None) is leaf
        by_name = name == "ce" or "crossentropy" in name.lower()
        if (is_keras_own and by_name) or getattr(leaf, "from_logits", None) is False:
            raise ValueError(
                f"The model returns logits, {name or leaf} expects probabilities: compile with "
                "SmoothedCrossEntropy() and Perplexity(), or with from_logits=True and "
                "ignore_class=0."
            )
