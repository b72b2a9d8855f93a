"""The optimizer of the recipe."""

import keras
from keras import ops

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.typing import Config, Tensor

if IS_TENSORFLOW:
    import tensorflow as tf
else:
    tf = None


@keras.saving.register_keras_serializable(package="keras_transformer")
class MeanAdam(keras.optimizers.Adam):
    """Adam in one pass over memory; its running mean of the weights follows a young model closely.

    Kingma and Ba (2015), "Adam: A Method for Stochastic Optimization", as Keras has it; but on
    TensorFlow, dense gradients take one operation for each variable where Keras takes a dozen, each
    of which reads and writes all of it.

    After t updates the mean's (`use_ema`) momentum is min(`ema_momentum`, (1 + t) / (10 + t)), as
    `tf.train.ExponentialMovingAverage` has it with `num_updates`. With a constant one, the mean
    holds what the weights were at random for as long as a warm-up lasts.

    It takes the arguments of `keras.optimizers.Adam`.

    Example:

    >>> optimizer = MeanAdam(WarmupInverseSqrt(d_model=64), use_ema=True, ema_momentum=0.99)
    >>> model.compile(optimizer, SmoothedCrossEntropy(), jit_compile=False)
    """

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        """Computes once for all variables what they share, and hands it on with the rate."""
        if tf is not None:
            update = ops.cast(self.iterations + 1, "float32")
            learning_rate = ops.convert_to_tensor(learning_rate)
            learning_rate = learning_rate, self.beta_1**update, self.beta_2**update
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(
        self,
        gradient: Tensor,
        variable: keras.Variable | Tensor,
        learning_rate: Tensor | tuple[Tensor, Tensor, Tensor],
    ) -> Tensor | None:
        if tf is None:
            return super().update_step(gradient, variable, learning_rate)
        learning_rate, beta1_power, beta2_power = learning_rate
        if isinstance(gradient, tf.IndexedSlices) or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        variable = variable.value if isinstance(variable, keras.Variable) else variable
        place = self._get_variable_index(variable)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[place].value.handle,
            v=self._velocities[place].value.handle,
            beta1_power=tf.cast(beta1_power, variable.dtype),
            beta2_power=tf.cast(beta2_power, variable.dtype),
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=tf.cast(self.beta_1, variable.dtype),
            beta2=tf.cast(self.beta_2, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
        )

    @property
    def ema_momentum(self) -> Tensor:
        """The momentum of the next update."""
        updates = ops.cast(self.iterations, "float32")
        return ops.minimum(self._largest_momentum, (1.0 + updates) / (10.0 + updates))

    @ema_momentum.setter
    def ema_momentum(self, value: float) -> None:
        self._largest_momentum = value

    def get_config(self) -> Config:
        return super().get_config() | {"ema_momentum": self._largest_momentum}
