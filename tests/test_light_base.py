"""TensorFlow and Keras alone: the layers work, and what needs more names the extra to install."""

import configparser
import json
import re
import sys

import keras_transformer
from tests.support import child_process
from tests.support.paths import ROOT

EXTRA = r"keras-encoder-decoder\[all\]"
BROUGHT_ALONG = {"rich", "tensorboard", "werkzeug"}  # by Keras and TensorFlow
# Of these, no public name needs more than TensorFlow and Keras.
BASE_MODULES = ("layers", "transformer", "training", "decoding", "presets", "special_ids")


def run_without(modules, code, *arguments):
    hide = f"import sys\nsys.modules.update(dict.fromkeys({sorted(modules)!r}))\n"
    command = [sys.executable, "-c", hide + code, *arguments]
    return child_process.run(command, capture_output=True, text=True, cwd=ROOT)


def requirements():
    """{part of setup.cfg: its requirements, without versions}."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    parts = {"base": config["options"]["install_requires"], **config["options.extras_require"]}
    return {part: set(re.findall(r"^[\w-]+", lines, re.M)) for part, lines in parts.items()}


def test_base_is_light():
    parts = requirements()
    assert parts["base"] == {"tensorflow", "keras"}
    assert parts["all"] == set(keras_transformer.OPTIONAL.values())
    assert parts["explore"] < parts["all"]


def test_every_public_name_is_there_or_names_the_extra():
    code = """
import json
import keras_transformer
missing = {}
for name in keras_transformer.__all__:
    try:
        getattr(keras_transformer, name)
    except ModuleNotFoundError as error:
        missing[name] = str(error)
print(json.dumps(missing))
"""
    run = run_without(set(keras_transformer.OPTIONAL) - BROUGHT_ALONG, code)
    assert run.returncode == 0, run.stderr
    missing = json.loads(run.stdout)
    for name, sentence in missing.items():
        pattern = rf"keras_transformer\.{name} needs ([\w-]+): pip install '{EXTRA}'\."
        assert re.fullmatch(pattern, sentence)[1] in requirements()["all"]
    assert {"SubwordTokenizer", "export", "plot_attention"} <= set(missing)
    assert not any(keras_transformer._HOME_OF[x].startswith(BASE_MODULES) for x in missing)


def test_command_line_names_the_extra():
    code = "sys.argv[0] = 'keras-transformer'\nfrom keras_transformer.cli.main import main; main()"
    run = run_without(["yaml"], code, "config")
    sentence = "this command needs pyyaml: pip install 'keras-encoder-decoder[all]'."
    assert (run.returncode, run.stderr) == (2, f"keras-transformer: {sentence}\n")
    assert run.stdout == ""
    # What no extra brings is an error as ever.
    missing = ModuleNotFoundError(name="numpy.linalg")
    assert keras_transformer.explain_missing("this", missing) is None
