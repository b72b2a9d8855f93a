"""Checks and times this package on a GPU, beside PyTorch: `make gpu`.

    python -m benchmarks.gpu [--parts checks commands figures] [--seconds 600]

On a machine without a GPU the same runs on the CPU, commands and figures in a tiny form with
`--tiny`.
"""

import dataclasses
import os
import subprocess
import sys
import time
from typing import Literal

from benchmarks.options import read_options
from benchmarks.report import table
from benchmarks.shapes import SHAPES
from benchmarks.side_by_side import System, time_systems

PARTS = "checks", "commands", "figures"
GPU = {
    "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # several processes share the card
}
TEN = {"steps_per_execution": 10}


@dataclasses.dataclass(frozen=True)
class Options:
    """Checks and times this package on a GPU, beside PyTorch.

    Args:
        parts: checks: numbers as on the CPU. commands: train, evaluate, export, check, translate,
            kill and resume by the command line. figures: speed and memory beside PyTorch's.
        rounds: Timed rounds.
        steps: Updates in a round of training.
        seconds: No part begins after so many seconds.
        torch_python: Python with PyTorch and Transformers, if it is another.
        multi30k: Directory of the tokenized Multi30k: the commands then train the preset tiny.
        output: Directory for runs and results.
        tiny: Small models and few steps, to try this out on a CPU.
    """

    parts: tuple[Literal[PARTS], ...] = PARTS
    rounds: int = 5
    steps: int = 40
    seconds: int = 3600
    torch_python: str = sys.executable
    multi30k: str | None = None
    output: str = "runs/gpu"
    tiny: bool = False


def main(options: Options) -> int:
    """Runs the parts; returns how many of them failed."""
    os.makedirs(options.output, exist_ok=True)
    end, failed = time.monotonic() + options.seconds, 0
    for part in options.parts:
        if time.monotonic() > end:
            print(f"The part {part} is left out: the time is over.")
            continue
        print(f"\n# {part}", flush=True)
        if part == "figures":
            figures(options)
            continue
        command = [sys.executable, "-m", f"benchmarks.gpu_{part}"]
        if part == "commands":
            command += ["--tiny"] * options.tiny + [options.output]
            command += [options.multi30k] if options.multi30k else []
        failed += subprocess.run(command, env=os.environ | GPU).returncode != 0
    return failed


def figures(options):
    """Prints a table for training and for decoding."""
    for title, systems in (*training(options), *decoding(options)):
        timings = time_systems(systems, options.rounds, together=True)
        print(f"\n{title}, {options.rounds} rounds\n\n{table(timings)}", flush=True)


def ours(name, function, work=1, **options):
    return System(name, "ours", function, options, work, environment=GPU)


def training(options):
    shape, size = ("toy", 256) if options.tiny else ("gpu", 8192)
    steps, python = options.steps, options.torch_python
    bfloat16 = dict(shape=shape, steps=steps, precision="mixed_bfloat16", strategy="auto")
    xla = bfloat16 | {"jit_compile": True, "steps_per_execution": 1}
    theirs = dict(shape=shape, steps=steps, precision="bfloat16")

    def torch(name, function, options, work):
        return System(name, "peers", function, options, work, python, environment=GPU)

    product = {"size": size, "precision": "bfloat16", "repetitions": 10}
    yield (
        f"training step, {shape}, {SHAPES[shape].rows * SHAPES[shape].length:,} target tokens",
        [
            ours("ours, bfloat16, XLA", "training", steps, **xla),
            ours("the same, ten steps a call", "training", steps, **xla | TEN),
            ours("without XLA", "training", steps, **bfloat16 | {"steps_per_execution": 1}),
            ours("XLA, float32", "training", steps, **xla | {"precision": "float32"}),
            ours("XLA, float16", "training", steps, **xla | {"precision": "mixed_float16"}),
            torch("PyTorch, bfloat16", "pytorch_training", theirs, steps),
            torch("PyTorch, compiled", "pytorch_training", theirs | {"compiled": True}, steps),
            ours(f"product of {size}³, bfloat16", "matrix_product", 10, **product),
            torch(f"PyTorch, product of {size}³", "pytorch_product", product, 10),
        ],
    )


def decoding(options):
    shape, many, few = ("toy", 4, 2) if options.tiny else ("gpu", 128, 32)
    ids = dict(shape=shape, rows=many, precision="mixed_bfloat16")
    theirs = dict(shape=shape, rows=many, precision="bfloat16")
    python = options.torch_python
    yield (
        f"greedy, {shape}, {many} sentences",
        [
            ours("ours, bfloat16, XLA's loop", "decoding", **ids, jit_compile=True),
            ours("TensorFlow's loop", "decoding", **ids),
            System("transformers", "peers", "marian_decoding", theirs, 1, python, GPU),
        ],
    )
    text = dict(shape=shape, rows=few)
    yield (
        f"greedy, {shape}, text to text, {few} sentences, float32",
        [
            ours("in memory", "translation", **text, precision="float32"),
            ours("exported", "exported_decoding", **text),
        ],
    )


if __name__ == "__main__":
    sys.exit(main(read_options(Options)))
