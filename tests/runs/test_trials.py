"""What is malicious or broken gives one sentence: nothing is executed, nothing is written."""

import sys

import pytest

from tests.support.trials.doing import attempt, listing
from tests.support.trials.measuring import run_measured
from tests.support.trials.page import PAGE, TRIALS, row
from tests.support.trials.trial import Trial

MOST_SECONDS, MOST_KILOBYTES = 10, 500_000  # more than a sound one
ALL = [(kind, name) for kind, trials in TRIALS.items() for name in trials]


def refused(trial, kind, folder):
    status, output, error = attempt(trial, kind, folder)
    assert status == trial.status, error
    assert trial.message in error + output.decode(), error
    return error, row(kind, trial, error, output)


@pytest.mark.parametrize("kind, name", ALL, ids=lambda word: word)
def test_trial(kind, name, tmp_path):
    trial = TRIALS[kind][name]
    before = {}

    def break_it(copy):
        trial.break_it(copy)
        before.update(listing(tmp_path))

    error, line = refused(trial._replace(break_it=break_it), kind, tmp_path)
    if trial.status == 2:
        assert error.startswith("keras-transformer: ") and error.count("\n") == 1, error
    assert listing(tmp_path) == before, "something was written"
    assert line in PAGE.read_text().splitlines(), "python -m tests.support.trials.page"


@pytest.mark.parametrize("kind", ["run", "export"])
def test_sound_one_is_opened(kind, tmp_path):
    status, output, error = attempt(Trial("", lambda copy: None, ""), kind, tmp_path)
    assert (status, error) == (0, "") and output.count(b"\n") == 1


# None takes 10 seconds or 500 MB more than opening a sound one: minutes, by hand.


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
