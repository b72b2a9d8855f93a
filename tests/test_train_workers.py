"""What export/ starts workers by, as two processes on loopback: the commands of its files."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys

import pytest
import yaml

from keras_transformer.runs.run import Run
from tests.support import child_process
from tests.support.command_line import run
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


@contextlib.contextmanager
def two_addresses():
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [one.getsockname()[1], other.getsockname()[1]]
    yield [f"127.0.0.1:{port}" for port in ports]


def of_compose(index, addresses, folder):
    """The command and environment of a service, on these addresses and with a small model."""
    service = COMPOSE[f"worker-{index}"]
    config = service["environment"]["TF_CONFIG"]
    for number, address in enumerate(addresses):
        config = config.replace(f"worker-{number}:2222", address)
    return shlex.split(f"{service['command']} {SMALL}"), {"TF_CONFIG": config}


def of_kubernetes(index, addresses, folder):
    """The same of a pod; what the Job gives it is its index."""
    (variable,) = CONTAINER["env"]
    assert variable["value"].split() == ["training-0.training:2222", "training-1.training:2222"]
    (script,) = CONTAINER["args"]
    more = f"$(test $resume && echo {DIVERGING} || echo {SMALL})"
    script = script.replace("$resume", f"$resume {more}")
    environment = {"WORKERS": " ".join(addresses), "JOB_COMPLETION_INDEX": str(index)}
    return [*CONTAINER["command"], script], environment


def train_together(what, folder):
    """Both workers' processes, ended."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    shell = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with two_addresses() as addresses, contextlib.ExitStack() as stack:
        processes = []
        for index in (0, 1):
            command, environment = what(index, addresses, folder)
            process = child_process.running(command, cwd=folder, env=shell | environment, **pipes)
            processes.append(stack.enter_context(process))
        return [(*process.communicate(), process.returncode) for process in processes]


@pytest.fixture
def folder(tmp_path):
    """A directory with corpora/ende, as the files have it."""
    source, target = write_corpus(tmp_path, 120, 1)
    result = run(
        *["prepare", "--train-source", source, "--train-target", target, "--valid-fraction", "0.1"],
        *["--vocabulary-size", "300", "--output", tmp_path / "corpora" / "ende"],
    )
    assert result.returncode == 0, result.stderr.decode()
    return tmp_path


@pytest.mark.slow
def test_a_job_and_again(folder):
    """Two pods train; started again, they go on, and end together when they diverge."""
    first = train_together(of_kubernetes, folder)
    assert [status for _, _, status in first] == [0, 0], first
    history = Run(folder / "runs" / "ende").read_history()
    assert [row["step"] for row in history] == [4, 8]
    for _, said, status in train_together(of_kubernetes, folder):
        assert status == 3, said
        assert "the loss or the gradient norm of step 2 of epoch 3 is not finite" in said
    assert Run(folder / "runs" / "ende").read_history() == history
    told = run("translate", folder / "runs" / "ende", stdin=b"ba ce\n")
    assert told.returncode == 0 and told.stdout.count(b"\n") == 1


@pytest.mark.ordeal
def test_compose(folder):
    outputs = train_together(of_compose, folder)
    assert [status for _, _, status in outputs] == [0, 0], outputs
    assert len(Run(folder / "runs" / "ende").read_history()) == 2


def test_the_files_name_the_same_command():
    """But for going on, which Kubernetes does by itself."""
    (script,) = CONTAINER["args"]
    line = script.strip().splitlines()[-1].strip()
    assert line.removesuffix(" $resume") == COMPOSE["worker-0"]["command"]
    assert COMPOSE["worker-0"]["command"] == COMPOSE["worker-1"]["command"]
    for index in (0, 1):
        config = json.loads(COMPOSE[f"worker-{index}"]["environment"]["TF_CONFIG"])
        assert config["task"] == {"type": "worker", "index": index}
    assert re.search(r"--strategy multiworker\b", line)
