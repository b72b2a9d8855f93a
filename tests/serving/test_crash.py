"""kill -9 in the middle of an export: a server sees whole versions, or none."""

import os
import random
import re
import subprocess
import sys
import time

import pytest

from keras_transformer.serving.saved_model import CORE_OPS
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.structure import check_structure
from tests.support import child_process
from tests.support.paths import ROOT, SUPPORT

KILLS = 20
# What TF Serving takes for a version: a directory whose name is an integer
# (sources/storage_path/file_system_storage_path_source.cc).
VERSION = re.compile("[0-9]+")


def start(base):
    program = SUPPORT / "export_again_and_again.py"
    root = os.fspath(ROOT)
    return child_process.running(
        [sys.executable, program, base],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )


@pytest.mark.slow
def test_killed_exports_leave_no_broken_version(tmp_path):
    base, generator = tmp_path / "model", random.Random(5)
    base.mkdir()
    seconds, cut_off = None, 0  # that an export takes; kills in the middle
    for _ in range(KILLS):
        with start(base) as process:  # killed with the server process of the trial
            assert process.stdout.readline() == "ready\n"
            if seconds is None:
                started = time.monotonic()
                assert process.stdout.readline() == "published\n"
                seconds = time.monotonic() - started
            time.sleep(generator.uniform(0, 1.1 * seconds))
        names = os.listdir(base)
        versions = [name for name in names if VERSION.fullmatch(name)]
        left = [name for name in names if name.endswith(".tmp")]
        assert sorted(versions + left) == sorted(names)
        assert len(left) <= 1, "the next export removes what is left"
        cut_off += len(left)
    assert cut_off > KILLS / 2
    whole = files(base / "1")
    for version in versions:
        assert files(base / version) == whole
        assert check_structure(base / version, CORE_OPS) == []  # stand-ins hold others
        with ServerProcess(base / version) as server:
            assert "error" not in server.predict(["a cat"])


def files(directory):
    return {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}
