"""The optimizer of the recipe."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class MeanAdam(keras.optimizers.Adam):
    """Adam whose running mean of the weights (`use_ema`) follows a young model closely.

    After t updates the mean's momentum is min(`ema_momentum`, (1 + t) / (10 + t)), as
    `tf.train.ExponentialMovingAverage` has it with `num_updates`. With a constant one, the mean
    holds what the weights were at random for as long as a warm-up lasts.

    Args:
        **kwargs: Those of `keras.optimizers.Adam`.
    """

    @property
    def ema_momentum(self):
        """The momentum of the next update."""
        updates = ops.cast(self.iterations, "float32")
        return ops.minimum(self._largest_momentum, (1.0 + updates) / (10.0 + updates))

    @ema_momentum.setter
    def ema_momentum(self, value):
        self._largest_momentum = value

    def get_config(self):
        return super().get_config() | {"ema_momentum": self._largest_momentum}
