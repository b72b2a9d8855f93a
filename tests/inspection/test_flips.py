"""A byte that is flipped anywhere is named, and nothing is loaded; nor does one that is sealed."""

import concurrent.futures
import random
import shutil
import subprocess
import sys

import pytest

from keras_transformer.runs import opening as run_opening
from keras_transformer.runs.opening import inspect_run
from keras_transformer.serving.acceptance import opening as version_opening
from keras_transformer.serving.acceptance.opening import inspect_version
from tests.support.sealing import reseal
from tests.support.trials.doing import sound

# The command in a process with limits: three times what a good one takes.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from keras_transformer.cli.entry import main
main()
"""


def flip(directory, generator, but=()):
    """Flips some bits of one byte of one file: its name, and a function that undoes it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in but)
    path = generator.choice(files)
    place, bits = generator.randrange(path.stat().st_size), generator.randrange(1, 256)
    turn(path, place, bits)
    return path, lambda: turn(path, place, bits)


def turn(path, place, bits):
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bits]))


@pytest.mark.parametrize("kind", ["run", "export"])
@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.ordeal)])
def test_every_flip_is_named(kind, count, tmp_path, monkeypatch):
    def loaded(*_, **__):
        raise AssertionError("something was loaded")

    monkeypatch.setattr(run_opening, "Probe", loaded)
    monkeypatch.setattr(version_opening, "Probe", loaded)
    copy, generator = sound(tmp_path, kind), random.Random(count)
    for _ in range(count):
        path, undo = flip(copy, generator)
        with pytest.raises(ValueError) as error:
            (inspect_run if kind == "run" else inspect_version)(copy)
        assert path.name in str(error.value) and "\n" not in str(error.value)
        undo()


@pytest.mark.parametrize(
    "kind, count",
    [
        ("run", 4),
        ("export", 16),
        pytest.param("run", 100, marks=pytest.mark.ordeal),
        pytest.param("export", 100, marks=pytest.mark.ordeal),
    ],
)
def test_sealed_flips_give_a_translation_or_a_sentence(kind, count, tmp_path):
    origin = sound(tmp_path, kind)

    def attempt(number):
        copy = shutil.copytree(origin, tmp_path / str(number))
        path, _ = flip(copy, random.Random(f"{kind} {number}"), ["model.json"])  # made anew
        reseal(copy)
        command = [sys.executable, "-c", LIMITED, "translate", str(copy)]
        done = subprocess.run(command, input=b"abc\n", capture_output=True, timeout=300)
        shutil.rmtree(copy)
        return path.name, done

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, done in pool.map(attempt, range(count)):
            error = done.stderr.decode()
            if done.returncode == 0:
                assert done.stdout.count(b"\n") == 1, name
            else:
                assert done.returncode == 2, (name, done.returncode, error)
                assert error.startswith("keras-transformer: ") and error.count("\n") == 1, error
