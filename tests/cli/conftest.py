"""A run directory whose weights are random, made once, where paths look like patterns."""

import pytest

from tests.support.paths import PATTERN
from tests.support.toy_translator import random_translator, save_run


@pytest.fixture(scope="session")
def random_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / PATTERN
    folder.mkdir(parents=True)
    save_run(random_translator(num_layers=3), folder)
    return folder
