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
HEAD = """# What was tried to make loading do harm

`translate`, `evaluate`, `score`, `align`, `export`, `average`, `train --start-from`, `check` and
the functions behind them take directories that others may have made. Each row is a sound run,
export or prepared corpus, broken or made malicious in one way, with the checksums made right again
unless they are what shows it; the command that is to open it; and what the user sees. The tests
hold for each of them: exit status 2 (of `check` 1, below its table), this sentence, no traceback;
nothing of what the file holds is executed, and nothing is written. `make ordeal` holds that none
takes 10 seconds or 500 MB more than a sound one.

This page is written by `python -m tests.support.trials.page` and compared by the tests.
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
