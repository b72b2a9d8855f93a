"""What the progress bar shows beside the loss. Perplexity comes from keras_nlp.

Shapes: B batch, T target length, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.special_ids import PAD


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(keras.metrics.Mean):
    """Share of target tokens that the model, given the true prefix, ranks first.

    Call arguments:
        y_true: Ids of shape `(B, T)`; PAD marks padding, which does not count.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Optional weights, shape `(B,)` or `(B, T)`.

    Example:

    >>> MaskedAccuracy()(np.array([[1, 0]]), np.array([[[0.0, 9.0], [0.0, 9.0]]]))
    1.0
    """

    def __init__(self, name="accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = ops.cast(y_true, "int32")
        hits = ops.equal(ops.argmax(y_pred, axis=-1), ids)
        weights = ops.cast(ops.not_equal(ids, PAD), self.dtype)
        if sample_weight is not None:
            weight = ops.cast(sample_weight, self.dtype)
            weights = weights * (weight if len(weight.shape) == 2 else ops.expand_dims(weight, 1))
        return super().update_state(hits, sample_weight=weights)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TargetTokens(keras.metrics.Sum):
    """Number of target tokens, padding not counted, seen since the epoch began.

    Call arguments:
        y_true: Ids of shape `(B, T)`; PAD marks padding.
        y_pred: Ignored.
        sample_weight: Ignored: a token is a token.

    Example:

    >>> TargetTokens()(np.array([[7, 3, 0]]), None)
    2.0
    """

    def __init__(self, name="target_tokens", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(ops.not_equal(ops.cast(y_true, "int32"), PAD))
