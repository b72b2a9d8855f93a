"""Files that a run names in its configuration are not given away by who exports it."""

import json
import re

import pytest

from tests.support.command_line import run
from tests.support.sealing import reseal
from tests.support.trials.broken_runs import text
from tests.support.trials.doing import sound

SECRET, OWN = "the key of the house", "cab bac"


@pytest.mark.parametrize("examples", [False, True])
def test_an_export_holds_no_file_that_a_run_names(examples, tmp_path):
    """Neither of an older run, which has no examples, nor of one that has."""
    (tmp_path / "secret.txt").write_text(f"{SECRET}\n" * 7)
    run_dir = sound(tmp_path, "run")
    text(
        "config.yaml",
        lambda content: re.sub(
            r"(?m)^((train|valid)_(source|target)): .*", rf"\1: {tmp_path}/secret.txt", content
        ),
    )(run_dir)
    if examples:
        (run_dir / "examples.json").write_text(json.dumps({"valid": [[OWN, OWN.upper()]] * 3}))
        reseal(run_dir)
    result = run("export", run_dir, tmp_path / "models", "--signatures", "serving_default")
    assert result.returncode == 0, result.stderr.decode()
    written = [path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in [result.stderr, *written])
    assert any(OWN.encode() in content for content in written) == examples
