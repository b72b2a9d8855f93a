"""`make ablations` takes hours: at least its options are the command line's."""

import pytest

from tests.benchmark.ablations import VARIANTS, training
from tests.support.command_line import run


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_training(name, tmp_path):
    """The only thing wrong with it is the corpus."""
    result = run("train", *training(tmp_path / "none", tmp_path / "run", VARIANTS[name]))
    message = f"{tmp_path}/none/train.lc.norm.tok.en.gz cannot be read"
    assert result.returncode == 2 and message in result.stderr.decode()
