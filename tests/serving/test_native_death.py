"""A process of its own that dies natively is one sentence of this one."""

import pytest

from keras_transformer.serving import server_process
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import load_saved_model
from tests.support.paths import ROOT
from tests.support.sealing import sound

DYING = ROOT / "tests" / "support" / "dying.py"


def test_of_what_loads_an_export(tmp_path, monkeypatch):
    export = sound(tmp_path, "export")
    assert len(ExportedTranslator(export).translate(["abc", "d"])) == 2
    monkeypatch.setattr(server_process, "PROGRAM", str(DYING))
    for use in (
        lambda: ExportedTranslator(export).translate(["abc"]),
        lambda: load_saved_model(export),
    ):
        with pytest.raises(ValueError, match="ended with status -11") as error:
            use()
        assert "\n" not in str(error.value)
