"""Replicas go on too: with metrics that each counts for itself, and a batch drawn before fit."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT, SUPPORT


@pytest.mark.slow
def test_two_replicas_resume_bit_for_bit(tmp_path):
    process = subprocess.run(
        [sys.executable, SUPPORT / "mirrored_resume.py", tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert json.loads(process.stdout.splitlines()[-1]) == []
