"""The table of trials: `python -m tests.support.trials.page` writes `docs/loading-trials.md`."""

import pathlib
import re
import tempfile

from tests.support.paths import ROOT
from tests.support.trials.corpora import CHECKPOINTS, CORPORA
from tests.support.trials.doing import attempt
from tests.support.trials.exports import EXPORTS
from tests.support.trials.runs import RUNS

TITLES = {"run": "Runs", "export": "Exports", "corpus": "Prepared corpora"}
PAGE = ROOT / "docs" / "loading-trials.md"
TRIALS = {"run": RUNS | CHECKPOINTS, "export": EXPORTS, "corpus": CORPORA}
HEAD = """# Malicious and corrupted files

`translate`, `evaluate`, `score`, `align`, `export`, `average`, `train --start-from`, `check` and
the functions behind them open directories that others may have made. In each row, a valid run,
export or prepared corpus was corrupted or made malicious in one way. Its checksums were computed
again, unless they are what detects the change. The table shows the command that opens it and the
message that the user sees. For each row the tests assert: exit status 2 (1 for `check`, with the
message in its table), this message, no traceback, no execution of anything in the file, and no
written file. `make ordeal` asserts that none takes 10 seconds or 500 MB more than a valid one.
[Security](security.md) describes what is checked.

`python -m tests.support.trials.page` writes this page, and the tests compare it.
"""


def row(kind, trial, error, output):
    """The line of a trial: what was tried, and the sentence."""
    command = trial.command.replace("{}/../", "").replace("{}", kind.upper())
    sentence = error.removeprefix("keras-transformer: ").strip()
    if trial.status == 1:
        lines = output.decode().splitlines()
        sentence = next(line.strip() for line in lines if trial.message in line)
    # Keras and TensorFlow number what a process makes.
    sentence = re.sub(r"(positional_embedding|signature_wrapper)_\d+", r"\1", sentence)
    # Cut at so many characters, the number's among them.
    sentence = re.sub(r"(expected 1 variables).*?\)", r"\1 …)", sentence)
    sentence = sentence.replace("|", "\\|").replace("<", "&lt;")
    return f"| {trial.title} | `{command}` | {sentence} |"


def main():
    lines = [HEAD]
    for kind, trials in TRIALS.items():
        lines += [f"## {TITLES[kind]}", "", "| tried | command | seen |", "|---|---|---|"]
        for trial in trials.values():
            with tempfile.TemporaryDirectory() as folder:
                status, output, error = attempt(trial, kind, pathlib.Path(folder))
            assert status == trial.status, (trial.title, error)
            lines.append(row(kind, trial, error, output))
        lines.append("")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
