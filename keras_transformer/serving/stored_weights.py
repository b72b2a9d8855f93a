"""The weights of a model as an export stores them: whole, in half, or in a quarter of the space."""

import keras
import tensorflow as tf

PRECISIONS = ("float32", "bfloat16", "int8")


class StoredWeights(tf.Module):
    """Holds a model's weights in a smaller type and lends them to the model at full precision.

    Only the matrices are stored smaller. Computation stays what the model's layers do: each request
    first turns the stored weights into float32. `"int8"` keeps for every output channel of a matrix
    (every row of an embedding) the scale max|w| / 127 and rounds to the nearest multiple of it.

    Args:
        model: A built Keras model.
        precision: `"float32"`, `"bfloat16"` or `"int8"`.

    Raises:
        ValueError: If the precision is unknown.
    """

    def __init__(self, model: keras.Model, precision: str = "float32") -> None:
        super().__init__(name="stored_weights")
        if precision not in PRECISIONS:
            raise ValueError(
                f"precision must be one of {', '.join(PRECISIONS)}, received {precision!r}."
            )
        self.as_they_are, self.bfloat16, self.quantized, self.scales = [], [], [], []
        pairs = []  # of a weight of the model and how to get its value
        for weight in model.weights:
            axes = _inputs(weight)
            if precision == "float32" or not axes:
                self.as_they_are.append(weight.value)
            elif precision == "bfloat16":
                self.bfloat16.append(tf.Variable(tf.cast(weight.value, tf.bfloat16)))
                pairs.append((weight, _as_float32(self.bfloat16[-1])))
            else:
                largest = tf.reduce_max(tf.abs(weight.value), axis=axes, keepdims=True)
                scale = tf.maximum(largest, 1e-12) / 127
                self.scales.append(tf.Variable(scale))
                steps = tf.cast(tf.round(weight.value / scale), tf.int8)
                self.quantized.append(tf.Variable(steps))
                pairs.append((weight, _scaled(self.quantized[-1], self.scales[-1])))
        self._get_pairs = lambda: pairs  # out of tf.saved_model.save's sight

    def in_use(self) -> keras.StatelessScope:
        """Context in which the model computes with what is stored."""
        return keras.StatelessScope([(weight, value()) for weight, value in self._get_pairs()])


def _as_float32(variable):
    return lambda: tf.cast(variable, tf.float32)


def _scaled(variable, scale):
    return lambda: tf.cast(variable, tf.float32) * scale


def _inputs(weight):
    """The axes of a matrix that its output channels sum over; none for what is no matrix."""
    if weight.name.endswith("embeddings"):  # a row is what comes in, or what the softmax gives
        return (1,)
    if weight.name != "kernel" or weight.dtype == "int8":  # what Keras has quantized stays so
        return ()
    output = weight.path.endswith("attention_output/kernel")  # (H, K, D)
    return tuple(range(len(weight.shape) - 1)) if output else (0,)
