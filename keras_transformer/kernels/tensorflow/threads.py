"""Cores of a processor share the work: all at one operation, or each at its own.

By default TensorFlow cuts every operation up for all cores, and after each of them cores wait for
one another. In a Transformer's many and small operations that costs more than anything but the
products themselves. Where there is enough to do at once, parts of a batch in training or several
batches in translation, each core does better by itself: measured with two cores, translating a test
set takes about half the time, training between 0.84 and 0.98, the less the larger the batch is for
the model.
"""

import os

import tensorflow as tf

from keras_transformer.kernels.cores import available_cores

# Cores that a batch of a training is cut up for: with more, parts would be few tokens each, and the
# graph, which has them all side by side, would take long to make. Measured with two only.
MOST_PARTS = 8
# By these, too, users tell TensorFlow how many threads to take.
ENVIRONMENT = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def work_apart(most: int | None = None) -> int:
    """Has TensorFlow do each operation on one core, and as many at once as there are cores.

    That slows down whatever does one thing at a time, so use what it is for: `Translator` works at
    several batches at once by itself, a model whose `parallel_microbatches` is
    `operations_at_once()` trains on as many of them. Everything in this process is affected.

    Nothing changes where TensorFlow has computed something already, which fixes how it does it;
    where its numbers of threads have been set already; or where there is a GPU.

    Args:
        most: With more cores than so many, nothing changes either. For training, `MOST_PARTS`.

    Returns:
        `operations_at_once()`.

    Example:

    >>> model.parallel_microbatches = work_apart(most=8)
    """
    threading, cores = tf.config.threading, available_cores()
    chosen = (
        threading.get_intra_op_parallelism_threads()
        or threading.get_inter_op_parallelism_threads()
        or any(name in os.environ for name in ENVIRONMENT)
    )
    few = most is None or cores <= most
    if few and not chosen and not tf.config.list_physical_devices("GPU"):
        try:
            threading.set_intra_op_parallelism_threads(1)
            threading.set_inter_op_parallelism_threads(cores)
        except RuntimeError:
            pass  # too late: the threads have been started
    return operations_at_once()


def operations_at_once() -> int:
    """Counts the operations TensorFlow does at once, each on a core: 1 where cores share them.

    Example:

    >>> model.parallel_microbatches = operations_at_once()
    """
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() != 1:
        return 1
    return threading.get_inter_op_parallelism_threads() or available_cores()
