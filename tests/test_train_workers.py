"""What export/ starts workers by, as two processes on loopback: the commands of its files."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys

import pytest
import yaml

from keras_transformer.runs.run import Run
from tests.support import child_process
from tests.support.command_line import succeeds
from tests.support.paths import EXPORT, ROOT
from tests.support.reversed_text import write_corpus

COMPOSE = yaml.safe_load((EXPORT / "training-compose.yml").read_text())["services"]
_, JOB = yaml.safe_load_all((EXPORT / "kubernetes" / "training-job.yaml").read_text())
(CONTAINER,) = JOB["spec"]["template"]["spec"]["containers"]
SMALL = (
    "--num-layers 1 --d-model 16 --num-heads 2 --d-ff 32 --max-length 40 --tokens-per-batch 200 "
    "--epochs 2 --steps-per-epoch 4 --precision float32 --validate-by bleu --keep-checkpoints 2"
)
DIVERGING = "--epochs 3 --learning-rate 1e30"


def train_together(folder):
    """Both pods' processes, ended: what the Job gives them is their index."""
    (variable,), (script,) = CONTAINER["env"], CONTAINER["args"]
    assert variable["value"].split() == ["training-0.training:2222", "training-1.training:2222"]
    more = f"$(test $resume && echo {DIVERGING} || echo {SMALL})"
    command = [*CONTAINER["command"], script.replace("$resume", f"$resume {more}")]
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        workers = " ".join(f"127.0.0.1:{x.getsockname()[1]}" for x in (one, other))
    shell = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "WORKERS": workers}
    pipes = dict(cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with contextlib.ExitStack() as stack:
        processes = []
        for index in "01":
            environment = shell | {"JOB_COMPLETION_INDEX": index}
            process = child_process.running(command, env=environment, **pipes)
            processes.append(stack.enter_context(process))
        return [(*process.communicate(), process.returncode) for process in processes]


@pytest.fixture
def folder(tmp_path):
    """A directory with corpora/ende, as the files have it."""
    source, target = write_corpus(tmp_path, 120, 1)
    succeeds(
        *["prepare", "--train-source", source, "--train-target", target, "--valid-fraction", "0.1"],
        *["--vocabulary-size", "300", "--output", tmp_path / "corpora" / "ende"],
    )
    return tmp_path


@pytest.mark.slow
def test_a_job_and_again(folder):
    """Two pods train; started again, they go on, and end together when they diverge."""
    first = train_together(folder)
    assert [status for _, _, status in first] == [0, 0], first
    history = Run(folder / "runs" / "ende").read_history()
    assert [row["step"] for row in history] == [4, 8]
    for _, said, status in train_together(folder):
        assert status == 3, said
        assert "the loss or the gradient norm of step 2 of epoch 3 is not finite" in said
    assert Run(folder / "runs" / "ende").read_history() == history
    told = succeeds("translate", folder / "runs" / "ende", stdin=b"ba ce\n")
    assert told.stdout.count(b"\n") == 1


def test_the_files_name_the_same_command():
    """But for going on, which Kubernetes does by itself."""
    (script,) = CONTAINER["args"]
    line = script.strip().splitlines()[-1].strip()
    assert line.removesuffix(" $resume") == COMPOSE["worker-0"]["command"]
    assert COMPOSE["worker-0"]["command"] == COMPOSE["worker-1"]["command"]
    for index in (0, 1):
        config = json.loads(COMPOSE[f"worker-{index}"]["environment"]["TF_CONFIG"])
        assert config["cluster"] == {"worker": ["worker-0:2222", "worker-1:2222"]}
        assert config["task"] == {"type": "worker", "index": index}
    assert re.search(r"--strategy multiworker\b", line)
