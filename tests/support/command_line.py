"""Runs `keras-transformer` as a user types it."""

import io
import json
import os
import subprocess
import sys
from unittest import mock

from keras_transformer.cli.main import run as run_command
from tests.support import child_process
from tests.support.paths import ROOT

EARLY = """
import json, sys
sys.argv = ["keras-transformer"]
from keras_transformer.cli.main import run
for arguments in json.load(sys.stdin):
    try:
        run(arguments)
    except SystemExit as end:
        assert end.code == 2, arguments
    assert not {"tensorflow", "keras"} & set(sys.modules), arguments
"""


def run(*arguments, stdin=b""):
    """The command in this process, where TensorFlow has been loaded already."""
    contents = {"stdin": stdin, "stdout": b"", "stderr": b""}
    streams = {k: io.TextIOWrapper(io.BytesIO(v), "utf-8") for k, v in contents.items()}
    status = 0
    with mock.patch.multiple(sys, **streams), mock.patch.dict(os.environ):
        try:
            run_command([*map(str, arguments)])
        except SystemExit as end:
            status = end.code or 0
    for stream in streams.values():
        stream.flush()
    outputs = (streams[name].buffer.getvalue() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(arguments, status, *outputs)


def succeeds(*arguments, stdin=b""):
    result = run(*arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr.decode()
    return result


def refused(arguments, message, stdin=b""):
    """The command is refused: by one sentence, with status 2, and with nothing on stdout."""
    result = run(*arguments, stdin=stdin)
    error = result.stderr.decode()
    assert (result.returncode, result.stdout) == (2, b""), error
    assert message in error and error.startswith("keras-transformer: ") and error.count("\n") == 1


def started(*arguments, **options):
    """The command in a process of its own, as a user starts it, which ends with the test."""
    program = [sys.executable, "-m", "keras_transformer", *map(str, arguments)]
    return child_process.running(program, **{"env": shell_environment()} | options)


def shell_environment():
    """The environment of a user's shell, without what TensorFlow and tests set in this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TF_")}


def python(*arguments, **environment):
    """What Python prints when called so, in a process that finds the package and the tests."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    options = dict(env=environment, capture_output=True, text=True, timeout=600)
    done = child_process.run([sys.executable, *map(str, arguments)], **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def sentences_before_tensorflow(commands):
    """What wrong commands are answered, all in a process in which none of them loads TensorFlow."""
    options = dict(input=json.dumps([list(map(str, command)) for command in commands]), text=True)
    process = child_process.run([sys.executable, "-c", EARLY], capture_output=True, **options)
    assert process.returncode == 0, process.stderr
    # Runs of other tests are made up, without checksums: a warning, no answer.
    lines = process.stderr.splitlines()
    return [line for line in lines if "was written without checksums" not in line]
