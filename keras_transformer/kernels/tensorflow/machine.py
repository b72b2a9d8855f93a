"""Settings that suit this machine: the precision that is fast here, and threads.

By default TensorFlow splits every operation among all cores, which wait for one another after each
of them. For the many small operations of a Transformer, that costs more than anything but the
products themselves. If there is enough to do at once (slices of a batch in training, several
batches in translation), it is faster to run each operation on one core: measured with two cores,
translating a test set takes about half the time, and training 0.84 to 0.98 of it; the larger the
batch in relation to the model, the smaller the gain.
"""

import functools
import logging
import os
import time

import keras
import tensorflow as tf

from keras_transformer.kernels import available_cores
from keras_transformer.kernels.products import is_exact, multiply

logger = logging.getLogger(__name__)

# Precision.

SHAPE = 256, 512, 1024  # of the product, about that of a feed-forward network on a small batch
ROUNDS = 4
FASTER = 0.75  # times float32's: half precision needs casts, which a product does not show
SLOWER = 1.05


@functools.cache
def slowdown(policy: str) -> float:
    """Times a product in another precision on this machine, as a multiple of the time in float32.

    It takes a tenth of a second, once. It starts TensorFlow's threads, so their number must be set
    before.

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
    # The minimum of several: other processes can only increase the time.
    return min(time for _, time in pairs) / min(time for time, _ in pairs)


def fastest() -> str:
    """Returns `"mixed_bfloat16"` if it is clearly faster on this machine, else `"float32"`."""
    # Products that are computed in float32 and rounded (`multiply`) are always slower.
    faster = is_exact("bfloat16") and slowdown("mixed_bfloat16") < FASTER
    return "mixed_bfloat16" if faster else "float32"


def choose(precision: str | None, wanted: str = "float32") -> str:
    """Chooses the precision to compute in.

    Args:
        precision: `"auto"` (the fastest on this machine), `None` (`wanted`, or float32 if `wanted`
            is slow), or a policy's name, which is used, with a warning if it is slow.
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


@functools.cache  # once for each policy
def _warn(precision):
    logger.warning(
        'Products in %s take %.1f times as long as in float32 on this machine: float32, or "auto", '
        "which times both, would be faster.",
        precision,
        slowdown(precision),
    )


def _product(dtype):
    """Returns a function that multiplies once and returns the seconds that it took."""
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


# Threads.

# Maximum number of cores that a training batch is split for: with more, slices would have few
# tokens, and the graph, which contains all of them, would take long to trace. Measured with two.
MAX_SLICES = 8
# Users can also set TensorFlow's threads by these variables.
ENVIRONMENT = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def configure_threads(max_parallel: int | None = None) -> int:
    """Makes TensorFlow run each operation on one core, and as many at once as there are cores.

    That slows down computations that do one thing at a time. `Translator` translates several
    batches at once by itself; a model trains on several slices at once if its
    `parallel_microbatches` is `inter_op_threads()`. The whole process is affected.

    Nothing changes if TensorFlow has already computed something, which fixes its threads, if its
    numbers of threads have already been set, or if there is a GPU.

    Args:
        max_parallel: With more cores than this, nothing changes either. For training, `MAX_SLICES`.

    Returns:
        `inter_op_threads()`.

    Example:

    >>> model.parallel_microbatches = configure_threads(max_parallel=8)
    """
    threading, cores = tf.config.threading, available_cores()
    chosen = (
        threading.get_intra_op_parallelism_threads()
        or threading.get_inter_op_parallelism_threads()
        or any(name in os.environ for name in ENVIRONMENT)
    )
    few = max_parallel is None or cores <= max_parallel
    if few and not chosen and not tf.config.list_physical_devices("GPU"):
        try:
            threading.set_intra_op_parallelism_threads(1)
            threading.set_inter_op_parallelism_threads(cores)
        except RuntimeError:
            pass  # too late: the threads have been started
    return inter_op_threads()


def inter_op_threads() -> int:
    """Returns how many operations TensorFlow runs at once, 1 if all cores share each of them.

    Example:

    >>> model.parallel_microbatches = inter_op_threads()
    """
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != 1:
        return 1
    return threading.get_inter_op_parallelism_threads() or available_cores()
