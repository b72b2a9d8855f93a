"""What is malicious or broken gives one sentence: nothing is executed, nothing is written."""

import pytest

from tests.support.trials.doing import attempt, listing
from tests.support.trials.page import PAGE, TRIALS, row
from tests.support.trials.trial import Trial

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
