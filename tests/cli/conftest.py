"""A run directory whose weights are random, made once, where paths look like patterns."""

import pytest

from tests.support.toy_translator import random_translator


@pytest.fixture(scope="session")
def random_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run [v2] *? \\ {a,b} [/b]"
    folder.mkdir(parents=True)
    translator = random_translator(num_layers=3)
    translator.model.save(folder / "model.keras")
    for side in ("source", "target"):
        translator.source_tokenizer.save(folder / f"{side}.spm")
    return folder
