"""What is fastest on this machine: precision, threads, and the operations of a decoding loop.

By default TensorFlow splits every operation among all cores, which synchronize after each of them.
With enough parallel work (slices of a batch in training, several batches in translation), it is
faster to run each operation on one core: measured with two cores, translating a test set takes
about half the time, and training 0.84 to 0.98 of it.
"""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_transformer.kernels import available_cores
from keras_transformer.kernels.backend import LoopOperations, multiply
from keras_transformer.utils import Tensor

logger = logging.getLogger(__name__)


def has_gpu() -> bool:
    """Returns whether TensorFlow computes on a GPU."""
    return bool(tf.config.list_logical_devices("GPU"))


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Context in which a GPU does not round the factors of float32 products (TF32)."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


# Precision.

SHAPE = 256, 512, 1024  # of the product, about that of a feed-forward network on a small batch
GPU_SHAPE = 8192, 2048, 8192  # on a GPU, which takes as long to start a small one
REPEATS = 4
FAST_RATIO = 0.75  # times float32's: half precision needs casts, which a product does not show
SLOW_RATIO = 1.05


@functools.cache
def slowdown(policy: str) -> float:
    """Measures the time of a product with a dtype policy, as a multiple of that in float32.

    It takes a tenth of a second, once. It starts TensorFlow's threads, so call `configure_threads`
    before.
    """
    dtype = keras.dtype_policies.get(policy).compute_dtype
    if dtype == "float32":
        return 1.0
    with tf.init_scope():
        single, half = _make_timer("float32"), _make_timer(dtype)
        pairs = [(single(), half()) for _ in range(REPEATS)]
    # The minimum of several: other processes can only increase the time.
    return min(time for _, time in pairs) / min(time for time, _ in pairs)


def choose_precision(precision: str | None, wanted: str = "float32") -> str:
    """Chooses the dtype policy to compute with.

    Args:
        precision: `"auto"` (mixed_bfloat16 if it is clearly faster on this machine, else float32),
            `None` (`wanted`, or float32 if `wanted` is slow), or a policy's name, which is used,
            with a warning if it is slow.
        wanted: With `None`, the policy that the model was trained in.
    """
    if precision == "auto":
        return "mixed_bfloat16" if slowdown("mixed_bfloat16") < FAST_RATIO else "float32"
    if precision is None:
        return wanted if slowdown(wanted) <= SLOW_RATIO else "float32"
    if slowdown(precision) > SLOW_RATIO:
        _warn_slow(precision)
    return precision


@functools.cache  # once for each policy
def _warn_slow(precision):
    logger.warning(
        "Products in %s take %.1f times as long as in float32 on this machine, and are less exact "
        "on processors without instructions for them: float32 is faster; "
        '"auto" selects the fastest precision.',
        precision,
        slowdown(precision),
    )


def _make_timer(dtype):
    """Returns a function that multiplies once and returns the seconds that it took."""
    rows, inner, columns = GPU_SHAPE if has_gpu() else SHAPE
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


def configure_threads(max_parallel: int | None = None) -> int:
    """Makes TensorFlow run each operation on one core, and as many at once as there are cores.

    That slows down sequential computations. `Translator` translates several batches in parallel
    automatically; a model trains on several slices in parallel if its `parallel_microbatches` is
    set to `inter_op_threads()`. The setting affects the whole process.

    Nothing changes if TensorFlow has already started its threads, if their numbers have already
    been set, or if the machine has a GPU.

    Args:
        max_parallel: Nothing changes with more cores than this. For training, use `MAX_SLICES`.

    Returns:
        `inter_op_threads()`.

    Example:

    >>> model.parallel_microbatches = configure_threads(max_parallel=8)
    """
    threading, cores = tf.config.threading, available_cores()
    chosen = (
        threading.get_intra_op_parallelism_threads()
        or threading.get_inter_op_parallelism_threads()
        or {"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} & os.environ.keys()
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
    """Returns how many operations TensorFlow runs in parallel, 1 if all cores share each of them.

    Example:

    >>> model.parallel_microbatches = inter_op_threads()
    """
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != 1:
        return 1
    return threading.get_inter_op_parallelism_threads() or available_cores()


# Decoding.


def _multiply_heads(x: Tensor, y: Tensor, transpose_y: bool = False) -> Tensor:
    """Multiplies `x` and `y`, batches of matrices; with `transpose_y`, `x` and `yᵀ`."""
    if x.dtype != tf.float32:  # TensorFlow's own kernels do not use bfloat16 units
        return tf.matmul(x, y, transpose_b=transpose_y)
    flags = {"adj_x": False, "adj_y": transpose_y, "grad_x": False, "grad_y": False}
    return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32, **flags)


def _softmax(scores: Tensor) -> Tensor:
    return tf.exp(tf.nn.log_softmax(scores))


# TensorFlow passes products and softmaxes to oneDNN, which wakes its threads for each of them: 20
# to 40 µs on two cores, instead of 2 µs for one sentence. These operations are computed by
# TensorFlow's own kernels, which are as fast for 256 sentences.
GRAPH_LOOP = LoopOperations(_multiply_heads, _softmax)


def graph_shape(x: Tensor) -> tuple[int | Tensor, ...]:
    """Does what `keras.ops.shape` does by half the operations, which take time to trace."""
    if None not in x.shape:
        return tuple(x.shape)
    sizes = zip(x.shape, tf.unstack(tf.shape(x)), strict=True)
    return tuple(unknown if known is None else known for known, unknown in sizes)
