"""Does trials: makes a sound copy, breaks it, and runs a command on it."""

import contextlib
import os
import shutil

from tests.support.command_line import run
from tests.support.paths import FIXTURES
from tests.support.sealing import reseal
from tests.support.trials.corpora import copy_corpus

SOUND = FIXTURES / "format-1"


def sound(folder, kind):
    """A run or an export that is well, with checksums, and pairs beside it."""
    if kind == "corpus":
        return copy_corpus(folder)
    copy = shutil.copytree(SOUND / ("run" if kind == "run" else "export/1"), folder / kind)
    (folder / "pairs.tsv").write_text("abc\tABC\ndef\tDEF\n")
    return reseal(copy)


def attempt(trial, kind, folder, program=run):
    """Tries a command: (status, stdout, stderr), with the copy's place taken out of the latter."""
    copy = sound(folder, kind)
    trial.break_it(copy)
    with contextlib.chdir(folder):
        result = program(*trial.command.replace("{}", str(copy)).split(), stdin=b"abc\n")
    here = f"{folder}{os.sep}".encode()
    output, error = (stream.replace(here, b"") for stream in (result.stdout, result.stderr))
    error = error.removeprefix(b"data: corpus=corpus\n")  # a training names its data first
    return result.returncode, output, error.decode()


def listing(folder):
    """What there is: names and sizes, so that nothing is written unseen."""
    return {
        os.path.join(place, name): os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(folder)
        for name in names
    }
