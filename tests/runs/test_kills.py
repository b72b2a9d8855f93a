"""Killed at any moment and resumed, a training on replicas comes to what it would have come to."""

import json
import random
import signal
import subprocess
import time

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.run import Run
from tests.support.command_line import started
from tests.support.layer_harness import assert_equal
from tests.support.reversed_text import write_corpus

SIZES = "--num-layers 1 --d-model 8 --num-heads 2 --d-ff 16 --max-length 24 --dropout 0.3"
RECIPE = "--vocabulary-size 290 --tokens-per-batch 128 --epochs 3 --steps-per-epoch 15 --ema 0.8"
RECIPE += " --cooldown-steps 20 --keep-checkpoints 2 --accumulation-steps 2 --clip-norm 0.5"
RECIPE += " --weight-decay 0.01 --validate-by loss --save-every 2 --parallel-microbatches 1"
RECIPE += " --strategy mirrored --logical-devices 2"
PIPES = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop, and the command that makes one."""
    folder = tmp_path_factory.mktemp("kills")
    texts = [*write_corpus(folder, 90, 1), *write_corpus(folder, 20, 2)]
    names = [f"--{side}-{part}" for side in ("train", "valid") for part in ("source", "target")]
    places = [word for pair in zip(names, texts, strict=True) for word in pair]
    command = ["train", "--preset", "tiny", *SIZES.split(), *RECIPE.split(), *places]
    with started(*command, "--output", folder / "whole", **PIPES) as process:
        said = process.stderr.read()
        assert process.wait() == 0 and "2 replicas" in said, said
    return folder / "whole", command


def wait_for_saves(process, folder, count):
    """Waits until so many points have been saved; says whether the process still runs."""
    name, seen = folder / "resume.json", None
    while process.poll() is None:
        now = name.stat().st_mtime_ns if name.exists() else None
        if now != seen:
            seen, count = now, count - 1
            if count < 0:
                return True
        time.sleep(0.0005)
    return False


def wait_for_half_a_file(process, folder):
    while process.poll() is None:
        if any(folder.glob("tmp.*")):
            return True
    return False


def kill(process, output, moment, generator):
    """Kills at a drawn moment, or in the middle of a save; says whether it still ran."""
    folder = output / "checkpoints"
    running = wait_for_saves(process, folder, generator.randint(1, 8))
    if running and moment == "save":
        running = wait_for_half_a_file(process, folder)
    elif running:
        time.sleep(generator.uniform(0, 0.05))
    process.send_signal(signal.SIGTERM if moment == "SIGTERM" else signal.SIGKILL)
    said = process.stderr.read()
    return process.wait(), said


def assert_same_run(run, whole):
    ours, theirs = (Run(path).checkpoints.latest() for path in (run, whole))
    assert ours[1].keys() == theirs[1].keys()
    for name, array in theirs[1].items():
        np.testing.assert_array_equal(ours[1][name], array, err_msg=name)
    for one, other in zip(Run(run).read_history(), Run(whole).read_history(), strict=True):
        assert one | {"minutes": 0} == other | {"minutes": 0}
    assert_equal(*(kt.load(x).model.get_weights() for x in (run, whole)))
    assert Run(run).describe()["metrics"].keys() == Run(whole).describe()["metrics"].keys()
    names = [{x.name for x in path.glob("checkpoints/*.weights.h5")} for path in (run, whole)]
    assert names[0] == names[1] and not list(run.rglob("tmp.*"))


def go_through(whole, output, moments, seed):
    expected, command = whole
    generator, resume = random.Random(seed), []
    for moment in moments:
        with started(*command, "--output", output, *resume, **PIPES) as process:
            status, said = kill(process, output, moment, generator)
        if moment == "SIGTERM":
            assert status == 143, said
            assert "keras-transformer: SIGTERM: saving the training" in said
            assert "Traceback" not in said
        else:
            assert status == -signal.SIGKILL, said
        resume = ["--resume"]
    begun = len(json.loads((output / "checkpoints" / "resume.json").read_text())["checkpoints"])
    with started(*command, "--output", output, "--resume", **PIPES) as process:
        said = process.stderr.read()
        assert process.wait() == 0, said
    assert ("resumed from step " in said) == bool(begun), said
    assert_same_run(output, expected)
    return begun


@pytest.mark.slow
def test_a_kill_and_a_signal(whole, tmp_path):
    assert go_through(whole, tmp_path / "run", ["save", "SIGTERM"], 1)


@pytest.mark.ordeal
def test_ten_kills(whole, tmp_path):
    begun = [
        go_through(whole, tmp_path / str(seed), [moment], 10 + seed)
        for seed, moment in enumerate(["update", "save"] * 5)
    ]
    assert sum(map(bool, begun)) > 5  # one killed before its first point begins anew
