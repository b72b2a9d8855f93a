"""The training loss.

Shapes: B batch, T target length, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.training.token_weights import sum_dtype, token_weights
from keras_transformer.typing import Config, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of integer labels with label smoothing, averaged over the target tokens.

    Label smoothing ("Attention Is All You Need", §5.4; Szegedy et al., 2016) mixes the label with
    a uniform distribution over the whole vocabulary:
    `(1 − ε)·(−log p(label)) + ε·mean(−log p)`, which equals
    `logsumexp(z) − (1 − ε)·z(label) − ε·mean(z)`. No one-hot labels and no log-probabilities of
    the size of the logits are built. Padding does not count.

    Args:
        label_smoothing: ε, 0 ≤ ε < 1.

    Call arguments:
        y_true: Ids of shape `(B, T)`; PAD marks padding.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Optional weights, shape `(B,)` or `(B, T)`.

    Returns:
        Scalar, in nats per token; 0 where there is no token.

    Raises:
        ValueError: If `label_smoothing` is out of range.

    Example:

    >>> logits = np.zeros((1, 2, 50), "float32")
    >>> SmoothedCrossEntropy(0.1)(np.array([[7, 0]]), logits)  # log 50
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
        # Ids are handed on as integers; Keras would turn them into floats of the loss' dtype.
        ids = ops.cast(y_true, "int32")
        weights = token_weights(ids, sample_weight, self.dtype)
        return super().__call__(ids, y_pred, sample_weight=weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        ids = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, self.dtype)
        of_label = ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
        smoothing = self.label_smoothing
        losses = ops.logsumexp(logits, axis=-1) - (1 - smoothing) * of_label
        return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses

    def get_config(self) -> Config:
        return super().get_config() | {"label_smoothing": self.label_smoothing}
