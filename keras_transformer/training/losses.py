"""The training loss.

Shapes: B batch, T target length, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.training.token_weights import read_labels, sum_dtype
from keras_transformer.typing import Config, Tensor


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
        label_smoothing: ε, 0 ≤ ε < 1.

    Call arguments:
        y_true: Ids of shape `(B, T)` of any integer type, or whole numbers of a float type. PAD (0)
            and every negative label, as -100 or -1 elsewhere, are ignored.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Optional weights, shape `(B,)` or `(B, T)`.

    Returns:
        Scalar, in nats per token; 0 where there is no token. NaN where a label is V or above, or no
        whole number, and a compiled function cannot raise.

    Raises:
        ValueError: If `label_smoothing` is out of range; if the labels have another shape; outside
            a compiled function, if a label is V or above, or no whole number.

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
        # Ids are handed on as integers; Keras would turn them into floats of the loss' dtype.
        logits = ops.convert_to_tensor(y_pred)
        size = ops.shape(logits)[-1]
        ids, weights = read_labels(y_true, logits, size, sample_weight, self.dtype)
        # A new tensor, without the mask that Keras would apply beside the labels' own.
        logits = ops.squeeze(ops.expand_dims(logits, 0), 0)
        return super().__call__(ids, logits, sample_weight=weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        ids = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, self.dtype)
        of_label = ops.take_along_axis(logits, ops.expand_dims(ids, -1), axis=-1)[..., 0]
        smoothing = self.label_smoothing
        losses = ops.logsumexp(logits, axis=-1) - (1 - smoothing) * of_label
        return losses - smoothing * ops.mean(logits, axis=-1) if smoothing else losses

    def get_config(self) -> Config:
        return super().get_config() | {"label_smoothing": self.label_smoothing}
