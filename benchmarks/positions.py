"""What relative positions cost beside sinusoidal ones: `make bench BENCH="--parts positions"`.

Aims, as ratios of medians of nine rounds (`--rounds 9`) in training and in decoding at batch 32: at
most 1.10, of `relative` and `disentangled` 1.20. Batch 1 and memory are reported only.
"""

from benchmarks.side_by_side import System
from keras_transformer.presets.options import POSITIONS

SCHEMES = [name for name in POSITIONS if name != "learned"]
COMMAND = {"TF_ENABLE_ONEDNN_OPTS": "1"}  # as the command line


def positions(shape, options):
    """(title, systems): sinusoidal positions first, which all ratios are to."""

    def systems(function, work=1, **more):
        return [
            System(name, "ours", function, more | {"positions": name}, work, environment=COMMAND)
            for name in SCHEMES
        ]

    how = dict(shape=shape, steps=options.steps, apart=True)
    yield f"positions, training step, {shape}", systems("training", options.steps, **how)
    for rows in (1, 32):
        found = systems("decoding", shape=shape, rows=rows)
        yield f"positions, greedy, {shape}, batch {rows}", found
