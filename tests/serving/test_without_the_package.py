"""What export/README.md offers for trying a version with TensorFlow's own means."""

import re
import shlex
import sys

from tests.support import child_process
from tests.support.paths import EXPORT, FIXTURES

VERSION_DIR = FIXTURES / "format-1" / "export" / "1"


def run(*command, text=b""):
    return child_process.run(command, input=text, capture_output=True)


def test_translate_takes_any_bytes():
    some = [b"abc", b"\xff\xfe\t\x00", b"", b"hg\r", "\u2028x".encode()]
    lines = [*some * 60, b"no end"]  # more than one request
    script = str(EXPORT / "translate.py")
    done = run(sys.executable, script, str(VERSION_DIR), text=b"\n".join(lines))
    assert done.returncode == 0, done.stderr
    rows = done.stdout.removesuffix(b"\n").split(b"\n")
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows, strict=True):
        source, text, log_prob = row.rsplit(b"\t", 2)
        assert source == line.removesuffix(b"\r")
        assert float(log_prob) <= 0
        text.decode()  # always UTF-8
    assert rows[2] == b"\t\t0.0000"


def test_saved_model_cli_as_the_readme_has_it():
    readme = (EXPORT / "README.md").read_text()
    (block,) = re.findall(r"( +python -c \"import tensorflow_text;.*?)\n\n", readme, re.DOTALL)
    python, *arguments = shlex.split(block.replace("\\\n", " "))
    arguments[arguments.index("--dir") + 1] = str(VERSION_DIR)
    done = run(sys.executable, *arguments)
    assert done.returncode == 0, done.stderr
    assert re.search(rb"output key text:\n\[b'", done.stdout)
