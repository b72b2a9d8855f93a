"""`make gpu` in its tiny form, on the CPU."""

import re
import sys

import pytest

from benchmarks import gpu_checks
from tests.support import child_process
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", ["logits, rotary", "greedy search, float32", "export"])
def test_a_check(name, capsys):
    assert gpu_checks.main([name]) == 0
    assert f"{name} " in capsys.readouterr().out


def test_a_name_that_no_check_has():
    with pytest.raises(SystemExit, match="No check is called 'logits': choose from logits, sin"):
        gpu_checks.main(["logits"])


@pytest.mark.ordeal
def test_commands_and_figures(tmp_path):
    options = "--parts commands figures --tiny --rounds 1 --steps 2 --output".split()
    command = [sys.executable, "-m", "benchmarks.gpu", *options, tmp_path / "gpu"]
    done = child_process.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout and "as without a stop: True" in done.stdout
    rows = re.findall(r"^\| (.*?) +\|", done.stdout, re.MULTILINE)
    assert "ours, bfloat16, XLA" in rows and "exported" in rows
