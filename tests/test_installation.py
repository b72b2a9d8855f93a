"""The package as it is published: built, installed into empty environments and used there."""

import os
import re
import shutil
import subprocess
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

ids = keras.Input((None,), dtype="int32")
x = kt.PositionalEmbedding(vocabulary_size=50, d_model=16)(ids)
x = kt.EncoderLayer(d_model=16, num_heads=4, d_ff=32)(x)
model = keras.Model(ids, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
# Later Keras itself looks for TensorFlow's datasets among what it is given.
assert ("tensorflow" in sys.modules) == (keras.backend.backend() == "tensorflow")
assert np.isfinite(model.predict_on_batch(np.array([[3, 4, 5, 0], [6, 7, 0, 0]]))).all()
print(keras.backend.backend(), kt.__file__)
"""


def run(*command, folder, status=0, **environment):
    environment = os.environ | {"PYTHONPATH": ""} | environment
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    done = child_process.run([*map(os.fspath, command)], cwd=folder, env=environment, **pipes)
    assert done.returncode == status, done.stdout[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    listing = run("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT)
    for name in filter(lambda name: (ROOT / name).is_file(), listing.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(checkout, tmp_path_factory):
    """Its wheel and sdist, in that order."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--outdir", folder, checkout, folder=folder)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_what_is_in_them(built):
    wheel, sdist = built
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if name.startswith("keras_transformer/")}
    others = {name.split("/")[0].partition("-")[0] for name in names - package}
    assert others == {"keras_encoder_decoder"}
    assert package == set(run("git", "ls-files", "keras_transformer", folder=ROOT).splitlines())
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert package | {"setup.cfg", "pyproject.toml", "README.md", "LICENSE"} <= inside


@pytest.mark.parametrize("python", PYTHONS)
def test_in_an_empty_environment(built, python, tmp_path):
    """First layers alone, of TensorFlow and JAX; then everything, from the sdist."""

    def run_here(program, *arguments, status=0, **environment):
        path = tmp_path / "environment" / "bin" / program
        return run(path, *arguments, folder=tmp_path, status=status, **environment)

    # pyenv has a Python that is not its default where PYENV_VERSION names it.
    run(f"python{python}", "-m", "venv", "environment", folder=tmp_path, PYENV_VERSION=python)
    run_here("pip", "install", "--quiet", built[0])
    for backend in ("tensorflow", "jax"):
        if backend == "jax":
            run_here("pip", "install", "--quiet", "jax[cpu]")
        assert f"{backend} {tmp_path}" in run_here("python", "-c", LAYERS, KERAS_BACKEND=backend)
    assert "translate" in run_here("keras-transformer", "--help")
    assert "needs pyyaml: pip install" in run_here("keras-transformer", "config", status=2)
    run_here("pip", "install", "--quiet", f"{built[1]}[all]")
    pairs = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "klmnopqr")
    (tmp_path / "pairs.tsv").write_text(pairs)
    options = "--num-layers 1 --d-model 32 --num-heads 2 --d-ff 64 --max-length 16 --epochs 2"
    options += " --steps-per-epoch 5 --vocabulary-size 280 --tokens-per-batch 256"
    options += " --train-source pairs.tsv --valid-source pairs.tsv --output run --plot"
    run_here("keras-transformer", "train", "--preset", "tiny", *options.split())
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    run_here("keras-transformer", "export", "run", "export")
    for model in ("run", "export/1"):
        command = ["evaluate", model, "--source", "pairs.tsv", "--json"]
        assert '"sentences": 64' in run_here("keras-transformer", *command)
