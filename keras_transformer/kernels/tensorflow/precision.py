"""The precision that is fast on this machine: by timing, not by the processor's name."""

import functools
import logging
import time

import keras
import tensorflow as tf

from keras_transformer.kernels.products import is_exact, multiply

logger = logging.getLogger(__name__)

SHAPE = 256, 512, 1024  # of the product: about that of a feed-forward network on a small batch
ROUNDS = 4
FASTER = 0.75  # of float32's time: half precision costs casts that a product does not show
SLOWER = 1.05


@functools.cache
def slowdown(policy: str) -> float:
    """Times a product in another precision: a multiple of the time in float32, on this machine.

    Takes a tenth of a second, once. It starts TensorFlow's threads, so whatever sets their number
    comes first.

    Args:
        policy: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.

    Returns:
        float, 1.0 for float32.
    """
    dtype = keras.dtype_policies.get(policy).compute_dtype
    if dtype == "float32":
        return 1.0
    with tf.init_scope():
        single, half = _product("float32"), _product(dtype)
        pairs = [(single(), half()) for _ in range(ROUNDS)]
    # The least of several: what else the machine does can only add to it.
    return min(time for _, time in pairs) / min(time for time, _ in pairs)


def fastest() -> str:
    """The precision that is fast here, `"float32"` unless `"mixed_bfloat16"` is clearly faster."""
    # What is computed in float32 and rounded (`multiply`) is slower, whatever a clock says.
    faster = is_exact("bfloat16") and slowdown("mixed_bfloat16") < FASTER
    return "mixed_bfloat16" if faster else "float32"


def choose(precision: str | None, wanted: str = "float32") -> str:
    """Decides what to compute in.

    Args:
        precision: What the user asks for: `"auto"` (what is fast here), `None` (the same, but never
            less exact than `wanted`), or a policy's name, which is taken and, where it is slow,
            warned of.
        wanted: With `None`, the policy that the model was trained in.

    Returns:
        `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.
    """
    if precision == "auto":
        return fastest()
    if precision is None:
        return wanted if slowdown(wanted) <= SLOWER else "float32"
    if slowdown(precision) > SLOWER:
        _warn(precision)
    return precision


@functools.cache  # once is enough
def _warn(precision):
    logger.warning(
        'Products in %s take %.1f times as long as in float32 on this machine: float32, or "auto", '
        "which times both, would be faster.",
        precision,
        slowdown(precision),
    )


def _product(dtype):
    """Returns a function that multiplies once, and says how many seconds that took."""
    rows, inner, columns = SHAPE
    x = tf.cast(tf.random.stateless_uniform([rows, inner], [0, 1]), dtype)
    y = tf.cast(tf.random.stateless_uniform([inner, columns], [0, 2]), dtype)
    product = tf.function(multiply, autograph=False)
    product(x, y)[0, 0].numpy()

    def seconds():
        started = time.perf_counter()
        product(x, y)[0, 0].numpy()
        return time.perf_counter() - started

    return seconds
