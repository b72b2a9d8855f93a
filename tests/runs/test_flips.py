"""A byte that is flipped anywhere is named, and nothing is loaded; nor does one that is sealed."""

import concurrent.futures
import random
import shutil
import sys

import pytest

from keras_transformer.runs import opening
from keras_transformer.runs.run import Run
from keras_transformer.serving import structure
from keras_transformer.serving.structure import inspect_version
from tests.support.sealing import reseal
from tests.support.trials.doing import sound
from tests.support.trials.measuring import run_measured

MOST_SECONDS, MOST_KILOBYTES = 10, 500_000  # more than a sound one
# The command in a process with limits, behind which it is over whatever it does.
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from keras_transformer.cli.main import main
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

    monkeypatch.setattr(opening, "inspect_model", loaded)
    monkeypatch.setattr(structure, "check_structure", loaded)
    copy, generator = sound(tmp_path, kind), random.Random(count)
    for _ in range(count):
        path, undo = flip(copy, generator)
        with pytest.raises(ValueError) as error:
            opening.inspect_run(Run(copy)) if kind == "run" else inspect_version(copy)
        assert path.name in str(error.value) and "\n" not in str(error.value)
        undo()


@pytest.mark.parametrize(
    "kind, count",
    [
        ("run", 2),
        ("export", 5),
        pytest.param("run", 100, marks=pytest.mark.ordeal),
        pytest.param("export", 100, marks=pytest.mark.ordeal),
    ],
)
def test_sealed_flips_give_a_translation_or_a_sentence(kind, count, tmp_path):
    origin = sound(tmp_path, kind)
    command = [sys.executable, "-c", LIMITED, "translate"]

    def attempt(number):
        copy = shutil.copytree(origin, tmp_path / str(number))
        path, _ = flip(copy, random.Random(f"{kind} {number}"), ["model.json"])  # made anew
        reseal(copy)
        done = run_measured([*command, str(copy)], b"abc\n")
        shutil.rmtree(copy)
        return path.name, done

    good = run_measured([*command, str(origin)], b"abc\n")
    assert good.returncode == 0, good.stderr.decode()
    most_seconds, most_kilobytes, translated = 0.0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, done in pool.map(attempt, range(count)):
            error = done.stderr.decode()
            if done.returncode == 0:
                assert done.stdout.count(b"\n") == 1, name
            else:
                assert done.returncode == 2, (name, done.returncode, error)
                # TensorFlow may have logged something before.
                assert error.splitlines()[-1].startswith("keras-transformer: "), error
                assert "Traceback" not in error, error
            translated += not done.returncode
            most_seconds = max(most_seconds, done.processor_seconds - good.processor_seconds)
            most_kilobytes = max(most_kilobytes, done.kilobytes - good.kilobytes)
            assert most_seconds < MOST_SECONDS and most_kilobytes < MOST_KILOBYTES, name
    more = f"{most_seconds:+.1f} s of a processor, {most_kilobytes / 1000:+.0f} MB at most"
    print(f"{count} flips in a sealed {kind}: {translated} translated; {more}", flush=True)
