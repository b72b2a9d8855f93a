"""Where training runs: a tf.distribute strategy from a name."""

import tensorflow as tf

STRATEGIES = ("auto", "one", "mirrored")


def make_strategy(name="auto"):
    """Chooses the devices that a training runs on.

    Args:
        name: `"auto"`, all GPUs of this machine, else its CPU; `"one"`, the first GPU, else the
            CPU; or `"mirrored"`, a copy of the model on each GPU, else on each logical CPU device.

    Returns:
        A `tf.distribute.Strategy`. Build and compile the model inside its `scope()`.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in STRATEGIES:
        raise ValueError(f"There is no strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    devices = gpus or (cpus if name == "mirrored" else cpus[:1])
    if name == "mirrored" or (name == "auto" and len(devices) > 1):
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.OneDeviceStrategy(devices[0])
