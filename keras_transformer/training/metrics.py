"""Metrics that the progress bar shows beside the loss.

Shapes: B batch, T target length, V vocabulary.
"""

from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_transformer.training.token_weights import read_labels, sum_dtype, token_weights
from keras_transformer.typing import Tensor

if TYPE_CHECKING:
    from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions


class TokenMetric(keras.metrics.Mean):
    """Mean over target tokens of something that follows from the logits: a base class.

    Call arguments:
        y_true: Ids of shape `(B, T)` of any integer type, or whole numbers of a float type. PAD (0)
            and every negative label are ignored. In a compiled function, which cannot raise, a
            label that is V or above, or no whole number, makes the metric NaN.
        y_pred: Logits of shape `(B, T, V)`, or what `SmoothedCrossEntropy` makes of them on the
            way, a `TokenPredictions` of shape `(B, T)`.
        sample_weight: Optional weights, shape `(B,)` or `(B, T)`.
    """

    def __init__(
        self, name: str | None = None, dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype or sum_dtype())

    def update_state(
        self,
        y_true: Tensor,
        y_pred: "Tensor | TokenPredictions",
        sample_weight: Tensor | None = None,
    ) -> None:
        fused = hasattr(y_pred, "log_probs")
        outputs = ops.expand_dims(y_pred.log_probs, -1) if fused else ops.convert_to_tensor(y_pred)
        size = y_pred.vocabulary_size if fused else ops.shape(outputs)[-1]
        ids, weights = read_labels(y_true, outputs, size, sample_weight, self.dtype)
        values = self.of_predictions(ids, y_pred) if fused else self.of_logits(ids, y_pred)
        # Flat: of rows Keras would take means first, over as many tokens as each is padded to.
        return super().update_state(ops.reshape(values, [-1]), ops.reshape(weights, [-1]))

    def of_logits(self, ids: Tensor, logits: Tensor) -> Tensor:
        """The values of each token, shape `(B, T)`."""
        raise NotImplementedError

    def of_predictions(self, ids: Tensor, predictions: "TokenPredictions") -> Tensor:
        """The same, of `TokenPredictions`."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMetric):
    """Share of target tokens that the model, given the true prefix, ranks first.

    Called with ids `(B, T)` and logits `(B, T, V)`; PAD and negative labels do not count.

    Example:

    >>> MaskedAccuracy()(np.array([[1, 0]]), np.array([[[0.0, 9.0], [0.0, 9.0]]]))
    1.0
    """

    _direction = "up"  # by which EarlyStopping and ModelCheckpoint know what is better

    def __init__(
        self, name: str = "accuracy", dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)

    def of_logits(self, ids: Tensor, logits: Tensor) -> Tensor:
        return ops.equal(ops.argmax(logits, axis=-1), ids)

    def of_predictions(self, ids: Tensor, predictions: "TokenPredictions") -> Tensor:
        return predictions.correct


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMetric):
    """`exp` of the mean cross-entropy of the target tokens, without label smoothing.

    Called with ids `(B, T)` and logits `(B, T, V)`; PAD and negative labels do not count.

    Example:

    >>> Perplexity()(np.array([[7, 3, 0]]), np.zeros((1, 3, 50)))
    50.0
    """

    _direction = "down"

    def __init__(
        self, name: str = "perplexity", dtype: str | keras.DTypePolicy | None = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)

    def of_logits(self, ids: Tensor, logits: Tensor) -> Tensor:
        of_label = ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
        return ops.logsumexp(logits, axis=-1) - of_label

    def of_predictions(self, ids: Tensor, predictions: "TokenPredictions") -> Tensor:
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
