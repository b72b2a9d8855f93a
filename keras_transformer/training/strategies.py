"""Devices to train on: a tf.distribute strategy from a name."""

import tensorflow as tf

from keras_transformer.kernels.backend import require_tensorflow
from keras_transformer.presets import STRATEGIES
from keras_transformer.training.cluster import PATIENCE, cluster_of, wait_for_workers
from keras_transformer.wording import counted


def make_strategy(
    name: str = "auto", logical_devices: int = 1, patience: float = PATIENCE
) -> tf.distribute.Strategy:
    """Chooses the devices that a training runs on.

    Args:
        name: `"auto"`, all workers where TF_CONFIG names several, else all GPUs of this machine,
            else its CPU; `"one"`, the first GPU, else the CPU; `"mirrored"`, a copy of the model on
            each GPU, else on each logical CPU device; or `"multiworker"`, the same on each of the
            machines that TF_CONFIG names, every one of which runs the same program.
        logical_devices: Number of devices that the CPU is to play, to try `"mirrored"` where there
            is no GPU. More than one has to be asked for before TensorFlow computes anything.
        patience: Seconds that workers wait for each other. The strategy has to be made before
            TensorFlow computes anything.

    Returns:
        A `tf.distribute.Strategy`. Build and compile the model inside its `scope()`.

    Raises:
        ValueError: If the name is unknown, it is too late for logical devices or workers, TF_CONFIG
            is missing or wrong, a worker does not answer, or Keras has another backend than
            TensorFlow.

    Example:

    >>> with make_strategy("auto").scope():
    ...     model = Transformer(8000, 8000, num_layers=2, d_model=64, num_heads=4, d_ff=128)
    """
    require_tensorflow("make_strategy")
    if name not in STRATEGIES:
        raise ValueError(f"There is no strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    cluster = cluster_of(name)
    if cluster is not None:
        return _make_multiworker(cluster, logical_devices, patience)
    if logical_devices > 1:
        _split_cpu(logical_devices)
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    devices = gpus or (cpus if name == "mirrored" else cpus[:1])
    if name == "mirrored" or (name != "one" and len(devices) > 1):
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.OneDeviceStrategy(devices[0])


def _make_multiworker(cluster, logical_devices, patience):
    """Joins the other workers."""
    if logical_devices > 1:
        raise ValueError(
            f"logical_devices={logical_devices} are for one process; leave them out with workers."
        )
    wait_for_workers(cluster, patience)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise ValueError(
            "Workers have to be joined before TensorFlow computes anything: call make_strategy "
            f"first ({error})."
        ) from None


def _split_cpu(count):
    """Makes the CPU appear as several devices."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * count
    try:
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError:
        available = len(tf.config.list_logical_devices("CPU"))
        if available != count:
            raise ValueError(
                f"The CPU is {counted(available, 'logical device')} already, expected {count}: ask "
                "for them before TensorFlow computes anything."
            ) from None
