"""None of the trials takes 10 seconds or 500 MB more than opening a sound one: minutes, by hand."""

import sys

import pytest

from tests.support.trials.doing import attempt
from tests.support.trials.measuring import run_measured
from tests.support.trials.page import TRIALS
from tests.support.trials.trial import Trial

MOST_SECONDS, MOST_KILOBYTES = 10, 500_000


def measured(kind, trial, folder):
    """(seconds, kilobytes) of a command in a process of its own, and of what that starts."""
    taken = []

    def program(*arguments, stdin):
        taken.append(run_measured([sys.executable, "-m", "keras_transformer", *arguments], stdin))
        return taken[0]

    folder.mkdir()
    status, output, error = attempt(trial, kind, folder, program)
    assert status == trial.status and trial.message in error + output.decode(), error
    return taken[0].seconds, taken[0].kilobytes


@pytest.mark.ordeal
@pytest.mark.parametrize("kind", TRIALS)
def test_no_trial_takes_much(kind, tmp_path):
    sound = Trial("", lambda copy: None, "", status=0)
    # A sound corpus would be trained on, for long: to open it takes what a run does.
    compared = "run" if kind == "corpus" else kind
    seconds, kilobytes = measured(compared, sound, tmp_path / "sound")
    print(f"sound {compared}: {seconds:.1f} s, {kilobytes / 1000:.0f} MB", flush=True)
    for name, trial in TRIALS[kind].items():
        folder = tmp_path / name.replace(" ", "-")
        more_seconds, more_kilobytes = measured(kind, trial, folder)
        print(f"{kind} {name}: {more_seconds:.1f} s, {more_kilobytes / 1000:.0f} MB", flush=True)
        assert more_seconds < seconds + MOST_SECONDS, name
        assert more_kilobytes < kilobytes + MOST_KILOBYTES, name
