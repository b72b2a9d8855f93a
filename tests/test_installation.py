"""The package as it is published: built, installed into empty environments and used there.

`make ordeal` runs these, a quarter of an hour and several gigabytes on two cores: too long for CI.
"""

import os
import re
import shutil
import sys
import tarfile
import zipfile

import pytest

from tests.support import child_process
from tests.support.paths import ROOT

pytestmark = pytest.mark.ordeal


PYTHONS = re.findall(r"Python :: (3\.\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
LAYERS = """
import sys
import numpy as np
import keras
import keras_transformer as kt

assert keras.backend.backend() == {backend!r}
ids = keras.Input((None,), dtype="int32")
x = kt.PositionalEmbedding(vocabulary_size=50, d_model=16)(ids)
x = kt.EncoderLayer(d_model=16, num_heads=4, d_ff=32)(x)
model = keras.Model(ids, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
# Later Keras itself looks for TensorFlow's datasets among what it is given.
assert ("tensorflow" in sys.modules) == ({backend!r} == "tensorflow")
model.compile("adam", "mse")
batch = np.array([[3, 4, 5, 0], [6, 7, 0, 0]])
losses = [model.train_on_batch(batch, np.ones((2, 2), "float32")) for _ in range(20)]
assert losses[-1] < losses[0] / 2, losses
print(kt.__file__)
"""


def run(*command, folder, **environment):
    """Runs a command where this checkout cannot be imported."""
    shell = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = dict(cwd=folder, env=shell | environment, text=True)
    return child_process.run(list(map(os.fspath, command)), capture_output=True, **settings)


def succeed(*command, folder, **environment):
    done = run(*command, folder=folder, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def environment_with(python, folder, package):
    """pyenv has a Python that is not its default where PYENV_VERSION names it."""
    command = [f"python{python}", "-m", "venv", folder / "environment"]
    succeed(*command, folder=folder, PYENV_VERSION=python)
    programs = folder / "environment" / "bin"
    succeed(programs / "pip", "install", "--quiet", package, folder=folder)
    return programs


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What git would commit."""
    folder = tmp_path_factory.mktemp("checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = child_process.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():  # one that was deleted is listed until it is committed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(checkout, tmp_path_factory):
    """Its wheel and sdist, in that order."""
    folder = tmp_path_factory.mktemp("built")
    succeed(sys.executable, "-m", "build", "--outdir", folder, checkout, folder=folder)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_what_is_in_them(built):
    wheel, sdist = built
    assert wheel.name.startswith("keras_encoder_decoder-")
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("keras_transformer/")}
    others = {name.split("/")[0] for name in set(names) - package}
    assert others == {wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    command = ["git", "ls-files", "keras_transformer"]
    ours = child_process.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert package == set(ours.stdout.splitlines())
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert package | {"setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= inside


@pytest.mark.parametrize("python", PYTHONS)
def test_base_alone(built, python, tmp_path):
    """The layers of TensorFlow and Keras alone; of JAX; one sentence for what needs more."""
    programs = environment_with(python, tmp_path, built[0])
    script = LAYERS.format(backend="tensorflow")
    assert str(tmp_path) in succeed(programs / "python", "-c", script, folder=tmp_path)
    assert "translate" in succeed(programs / "keras-transformer", "--help", folder=tmp_path)
    done = run(programs / "keras-transformer", "config", folder=tmp_path)
    sentence = "this command needs pyyaml: pip install 'keras-encoder-decoder[all]'."
    assert (done.returncode, done.stderr) == (2, f"keras-transformer: {sentence}\n")
    succeed(programs / "pip", "install", "--quiet", "jax[cpu]", folder=tmp_path)
    script = LAYERS.format(backend="jax")
    succeed(programs / "python", "-c", script, folder=tmp_path, KERAS_BACKEND="jax")


@pytest.mark.parametrize("python", PYTHONS)
def test_everything(built, python, tmp_path):
    """From the sdist with the extra `all`: train, translate, export, serve from the export."""
    program = environment_with(python, tmp_path, f"{built[1]}[all]") / "keras-transformer"
    pairs = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "klmnopqr")
    (tmp_path / "pairs.tsv").write_text(pairs)
    options = "--num-layers 1 --d-model 32 --num-heads 2 --d-ff 64 --max-length 16 --epochs 2"
    options += " --steps-per-epoch 5 --vocabulary-size 280 --tokens-per-batch 256"
    options += " --train-source pairs.tsv --valid-source pairs.tsv --output run --plot"
    succeed(program, "train", "--preset", "tiny", *options.split(), folder=tmp_path)
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    succeed(program, "export", "run", "export", folder=tmp_path)
    for model in ("run", "export/1"):
        command = ["evaluate", model, "--source", "pairs.tsv", "--json"]
        assert '"sentences": 64' in succeed(program, *command, folder=tmp_path)


def test_the_demo_with_the_newest_python(checkout):
    """As README has it, from a fresh checkout."""
    shell = {"PYENV_VERSION": PYTHONS[-1], "MAKEFLAGS": ""}  # those of `make ordeal` are not meant
    printed = succeed("make", "demo", f"PYTHON=python{PYTHONS[-1]}", folder=checkout, **shell)
    title, value = printed.splitlines()[-1].split(": ")
    assert title == "exact match" and float(value.removesuffix(" %")) > 95
