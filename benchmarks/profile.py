"""Where the time of our training step goes, in float32, each core at a part of the batch.

    python -m benchmarks.profile [SHAPE ...]

Prints the time of a step, and the processor time of each kind of operation, of all cores together,
as TensorFlow's profiler sees it: the median of several steps.
"""

import collections
import glob
import os
import statistics
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks import ours
from benchmarks.shapes import SHAPES

STEPS = 5
STEP = "multi_step_on_iterator"  # Keras' name for the function that is a step


def operations(shape):
    """Milliseconds of the steps, and, for each kind of operation, of each step's operations."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    step = ours.training(shape, apart=True)
    step()
    step()
    steps, kinds = [], collections.defaultdict(list)
    for _ in range(STEPS):
        with tempfile.TemporaryDirectory() as folder:
            with tf.profiler.experimental.Profile(folder):
                step()
            (path,) = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
            with open(path, "rb") as file:
                space = XSpace.FromString(file.read())
        found = collections.Counter()
        for plane in space.planes:
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    # "name:kind" is an operation; the profiler's own notes are "class::method".
                    if ":" in name and "::" not in name:
                        found[name.rpartition(":")[2].strip()] += event.duration_ps / 1e9
        functions = [kind for kind in found if STEP in kind]
        steps.append(max(found.pop(kind) for kind in functions))
        for kind, milliseconds in found.items():
            kinds[kind].append(milliseconds)
    return steps, kinds


def main(shapes):
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        sys.exit(f"There is no shape {unknown[0]}: choose from {', '.join(SHAPES)}.")
    for shape in shapes:
        steps, kinds = operations(shape)
        medians = {kind: statistics.median(found) for kind, found in kinds.items()}
        step = statistics.median(steps)
        print(f"{shape}: {step:.1f} ms a step, {sum(medians.values()):.0f} ms of all cores")
        for kind in sorted(medians, key=medians.get, reverse=True)[:25]:
            print(f"  {medians[kind]:8.2f}  {kind}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["small", "base"])
