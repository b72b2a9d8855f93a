"""The models of runs: loaded, opened as whatever translates, averaged from checkpoints."""

import functools
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.inspection.files import describe_corruption
from keras_transformer.inspection.probing import Probe
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.presets.options import check_precision
from keras_transformer.runs.checkpoints import file_checksum
from keras_transformer.runs.run import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    EXAMPLES,
    MODEL,
    SCORES,
    WEIGHTS,
    Run,
    rank,
    ranking_key,
)
from keras_transformer.runs.streams import lasting_stderr
from keras_transformer.serving.versions import version_dir
from keras_transformer.tokenizers import saved
from keras_transformer.translation.results import check_n_best
from keras_transformer.utils import Path, counted, creating, replacing

if TYPE_CHECKING:
    import keras

    from keras_transformer.serving.exported_translator import ExportedTranslator
    from keras_transformer.translation.translator import Translator

EAGER_SENTENCES = 2  # so few that decoding them takes less time than making a graph of it


# --- opening ---


def load(path: Path, precision: str | None = None) -> "Translator":
    """Loads a trained translator.

    Nothing in a run is executed, and nothing outside it is read: `Run.inspect` looks at it first.
    Classes of your own have to be registered before (`keras.saving.register_keras_serializable`).

    Args:
        path: A run directory.
        precision: What to compute in: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or
            `"auto"`, whichever of the first two is faster on this machine. By default as it was
            trained, but in float32 where that is as fast.

    Returns:
        `Translator`.

    Raises:
        ValueError: If `path` is not a run directory, or its training has saved no model yet; if it
            is damaged, has weights that are not finite, or names unknown classes; or the precision
            is unknown.

    Example:

    >>> keras_transformer.load("runs/dates").translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """
    check_precision(precision)
    run = Run.of(path)
    description = run.inspect()
    import keras

    from keras_transformer.kernels.tensorflow.machine import choose
    from keras_transformer.training.divergence import check_weights
    from keras_transformer.transformer import Transformer
    from keras_transformer.translation.translator import Translator

    name = run.file(MODEL)
    try:
        model = keras.saving.load_model(name, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises anything where a file is not what it seems
        raise ValueError(describe_corruption(name, error)) from error
    if not isinstance(model, Transformer):
        raise ValueError(f"{name} holds a {type(model).__name__}, expected a Transformer.")
    check_weights(model, name)
    translator = Translator(model, *saved.load(run))
    translator = translator.in_precision(choose(precision, model.dtype_policy.name))
    translator.card = description
    return translator


def open_model(
    path: Path, precision: str | None = None, allow_ops: Collection[str] = ()
) -> "Translator | ExportedTranslator":
    """Opens a run or an export.

    Args:
        path: A run directory, or a SavedModel's base or version directory.
        precision: Of a run, see `load`.
        allow_ops: Ops that a SavedModel may hold besides, see `ExportedTranslator`.

    Returns:
        `Translator`, or `ExportedTranslator`, which loads no TensorFlow.

    Raises:
        ValueError: If `path` is neither, or a SavedModel that is to compute in another precision.
    """
    # Mistakes first: importing TensorFlow takes seconds.
    if not os.path.isdir(path):
        raise ValueError(f"{path} is no directory: give a run directory or a SavedModel.")
    run = Run.of(path)
    if run.has_model or run.has(CONFIG):
        return load(run, precision)  # which refuses a run without a model
    try:
        version_dir(path)
    except ValueError:
        raise ValueError(
            f"{path} is neither a run directory, with {MODEL}, nor a SavedModel, with "
            "saved_model.pb in it or in its highest version: give the --output of a training, or "
            "the directory of an export."
        ) from None
    if precision is not None:
        raise ValueError(
            f"{path} is a SavedModel, which computes in what it was exported for: leave out "
            "--precision, or export it anew with --computation."
        )
    from keras_transformer.serving.exported_translator import ExportedTranslator

    return ExportedTranslator(path, allow_ops)


def open_translator(
    path: Path,
    search: SearchConfig = GREEDY,
    n_best: int | None = None,
    precision: str | None = None,
    prefixes: bool = False,
    allow_ops: Collection[str] = (),
) -> Callable[..., list[Any]]:
    """Opens a run or an export as a function.

    Args:
        path, precision, allow_ops: See `open_model`.
        search: `SearchConfig`.
        n_best: How many translations to find, see `Translator.translate_n_best`; None for one
            string for each text.
        prefixes: Whether prefixes of the translations will be given.

    Returns:
        Function from a list of strings, in any order, to the list of their translations; from
        `prefixes`, None or a list of what these begin with; and from the number of the `first`
        string, where a list is a part of many, which are translated one part after the other.

    Raises:
        ValueError: As `open_model` does, or if a SavedModel cannot search like this.
    """
    check_n_best(n_best, search)
    model = open_model(path, precision, allow_ops)
    run = Run.of(path).has_model
    if not run:
        model.check_search(search, prefixes)
    method: Callable[..., list[Any]] = model.translate
    if n_best is not None:
        method = functools.partial(model.translate_n_best, n_best=n_best)

    count = 0

    def translate(texts, prefixes=None, first=0):
        nonlocal count
        count += len(texts)
        if run:
            model.run_eagerly(count <= EAGER_SENTENCES)
        return method(texts, search=search, prefixes=prefixes, first=first)

    return translate


# --- averaging ---


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Writes the arithmetic mean of several weights files.

    Averaging the last checkpoints of a training is how "Attention Is All You Need" (§6.1) made its
    models.

    Args:
        paths: Names of `.weights.h5` files of one architecture.
        output: Name of the file to write, which may be one of them.

    Raises:
        ValueError: If no file is given, one cannot be read, or their weights differ in name or
            shape or are not finite.

    Example:

    >>> names = ["1.weights.h5", "2.weights.h5"]
    >>> for name in names:
    ...     history = model.fit(dataset, shuffle=False, verbose=0)
    ...     model.save_weights(name)
    >>> average_checkpoints(names, "mean.weights.h5")
    >>> model.load_weights("mean.weights.h5")
    """
    import h5py  # which translating by an export does without

    if not paths:
        raise ValueError("There is no checkpoint to average: give at least one weights file.")
    means = _read(paths[0])
    for count, path in enumerate(paths[1:], start=2):
        weights = _read(path)
        for name in means.keys() | weights.keys():
            shapes = [np.shape(of.get(name)) if name in of else None for of in (means, weights)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{path} does not fit {paths[0]}: {name} has shape {shapes[1]}, expected "
                    f"{shapes[0]}; average checkpoints of one training."
                )
            means[name] += (weights[name] - means[name]) / count
    with open(paths[0], "rb") as file:
        whole = io.BytesIO(file.read())  # everything but the numbers stays as in the first one
    with h5py.File(whole, "r+") as file:
        for name, mean in means.items():
            file[name][...] = mean
    with replacing(output) as name, open(name, "wb") as file:
        file.write(whole.getbuffer())


def load_mean(run: Run, model: "keras.Model", checkpoints: Iterable[dict[str, Any]]) -> None:
    """Loads the mean of some weights of a run into a model.

    Args:
        run: `Run`.
        model: A built model like the one that was trained.
        checkpoints: Some of `run.read_state()["checkpoints"]`.
    """
    files: list[str] = []
    for one in checkpoints:
        if not re.fullmatch(WEIGHTS, str(one["file"])):
            raise ValueError(f"{run} names the checkpoint {one['file']!r}, which is none of it.")
        files.append(run.file(CHECKPOINTS, one["file"]))
        if file_checksum(files[-1]) != one["sha256"]:
            raise ValueError(
                f"{files[-1]} is damaged (its checksum is another than when it was written): put "
                "back a copy of it."
            )
    Probe(files).answers()  # before native code reads them here
    with tempfile.TemporaryDirectory() as folder:
        mean = os.path.join(folder, "mean.weights.h5")
        average_checkpoints(files, mean)
        model.load_weights(mean)


def members(state: dict[str, Any], checkpoints: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Names the checkpoints in a mean: {"epoch 3": its step and scores, …}."""
    names = "step", "val_loss", *SCORES
    rows = {one["epoch"]: state["history"][one["epoch"] - 1] for one in checkpoints}
    return {
        f"epoch {epoch}": {name: rows[epoch][name] for name in names if name in rows[epoch]}
        for epoch in sorted(rows)
    }


def is_worse(state: dict[str, Any], scores: dict[str, float], joined: dict[str, Any]) -> bool:
    """Compares a mean with the best checkpoint of its training; prints on stderr if it is worse.

    Args:
        state: Of the training, as `Run.read_state` returns it.
        scores: Of the mean.
        joined: The `members` of the mean; one checkpoint is its own mean.
    """
    monitor, best = state["monitor"], rank(state)[0]
    if list(joined) == [f"epoch {best['epoch']}"]:  # scored twice, it may differ by rounding
        return False
    alone = state["history"][best["epoch"] - 1]
    worse = ranking_key(monitor, scores) > ranking_key(monitor, alone)
    if worse:
        names = dict.fromkeys((monitor, "val_loss"))
        mean, one = (", ".join(f"{name} {x[name]:.4g}" for name in names) for x in (scores, alone))
        whole = f"the mean of {', '.join(joined)}" if len(joined) > 1 else next(iter(joined))
        print(f"{whole} ({mean}) is worse than epoch {best['epoch']} ({one})", file=sys.stderr)
    return worse


@lasting_stderr()
def average(path: Path, output: Path, number: int = 5, by: str = "best") -> None:
    """Makes a run directory whose model is the mean of several checkpoints of another run.

    It is validated as the run was; if it is worse than the best checkpoint, this is printed on
    stderr.

    Args:
        path: A run directory.
        output: The directory to make; it holds what is needed to translate, evaluate and export.
        number: Number of checkpoints; as many must have been kept (`keep_checkpoints`).
        by: `"best"` or `"last"`.

    Raises:
        ValueError: If there are not as many checkpoints, or `output` exists.
    """
    run = Run.of(path)
    state = run.read_state()
    if by not in ("best", "last"):
        raise ValueError(f'by must be "best" or "last", received {by!r}.')
    if state is None:
        raise ValueError(f"There is no checkpoint in {path}: give the --output of a training.")
    held = len(state["checkpoints"])
    if not 1 <= number <= held:
        raise ValueError(
            f"{path} holds {counted(held, 'checkpoint')}, received number={number}: give a number "
            f"from 1 to {held}, or train with a larger --keep-checkpoints."
        )
    if os.path.exists(output):
        raise ValueError(f"{output} exists already: choose another name.")
    chosen = rank(state)[:number] if by == "best" else state["checkpoints"][-number:]
    from keras_transformer.runs.validation import validate_as  # after mistakes: it takes seconds

    translator, joined = load(run), members(state, chosen)
    load_mean(run, translator.model, chosen)
    scores = validate_as(run, translator)
    if scores:
        is_worse(state, scores, joined)
    with creating(output) as temporary:
        for name in (*saved.paths(run), *map(run.file, (CONFIG, DATA, EXAMPLES))):
            if os.path.exists(name):
                shutil.copy(name, temporary)
        Run(temporary).write_model(translator.model, {"metrics": scores, "mean_of": joined})


def _read(path):
    """The arrays of a weights file by name, in float64."""
    import h5py

    arrays = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[...].astype("float64")
            if not np.isfinite(arrays[name]).all():
                raise ValueError(
                    f"{path} holds weights that are not finite, such as {name}: its training "
                    "diverged. Average checkpoints from before that."
                )

    try:
        with h5py.File(os.fspath(path), "r") as file:
            file.visititems(collect)
    except OSError as error:
        raise ValueError(f"{path} is no weights file that can be read: {error}.") from error
    return arrays
