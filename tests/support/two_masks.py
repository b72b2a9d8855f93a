"""A model whose dropout is the same in every process: one mask for each pass of R-Drop."""

import keras
from keras import ops

import keras_transformer as kt

MASKS = [[2.0, 2.0, 0.0, 0.0] * 4, [0.0, 2.0, 0.0, 2.0] * 4]


@keras.saving.register_keras_serializable(package="tests")
class TwoMasks(kt.Transformer):
    """Masks the decoder's output: rows of the first half by one mask, those of the other by one."""

    def _decode(self, target, memory, source, training):
        x, *scores = super()._decode(target, memory, source, training)
        if training:
            rows = ops.shape(x)[0]
            is_second = ops.arange(rows) >= rows // 2
            first, second = (ops.cast(mask, x.dtype) for mask in MASKS)
            x = x * ops.where(is_second[:, None, None], second, first)
        return (x, *scores)
