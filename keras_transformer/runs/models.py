"""Loads the models of runs, opens them for translation, and averages checkpoints."""

import functools
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.inspection.files import describe_corruption
from keras_transformer.inspection.probing import Probe
from keras_transformer.presets import GREEDY, SearchConfig, resolve_search
from keras_transformer.presets.options import check_precision
from keras_transformer.runs.checkpoints import check_checksum
from keras_transformer.runs.run import (
    CHECKPOINTS,
    CONFIG,
    DATA,
    EXAMPLES,
    MODEL,
    SCORES,
    WEIGHTS_PATTERN,
    Run,
    check_not_foreign,
    rank,
    ranking_key,
)
from keras_transformer.runs.streams import tolerate_closed_stderr
from keras_transformer.serving.versions import find_exported_search, version_dir, versions
from keras_transformer.tokenizers import saved
from keras_transformer.translation.results import check_n_best
from keras_transformer.translation.sentence_batches import as_bytes
from keras_transformer.utils import Path, creating, replacing

if TYPE_CHECKING:
    import keras

    from keras_transformer.serving.exported_translator import ExportedTranslator
    from keras_transformer.translation.translator import Translator

EAGER_SENTENCES = 2  # decoding up to so few eagerly is faster than tracing a graph


# --- opening ---


def load(path: Path, precision: str | None = None) -> "Translator":
    """Loads a trained translator.

    No code in the run is executed, and nothing outside it is read: `Run.inspect` checks it first.
    Register your own classes before (`keras.saving.register_keras_serializable`).

    Args:
        path: A run directory.
        precision: Dtype policy: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or `"auto"`,
            the faster of the first two on this machine. By default that of the training, or float32
            if that is as fast.

    Returns:
        `Translator`.

    Raises:
        ValueError: If `path` is not a run directory with a model; if it is corrupted, has weights
            that are not finite, or contains unknown classes; or the precision is unknown.

    Example:

    >>> keras_transformer.load("runs/dates").translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """
    check_precision(precision)
    run = Run.from_path(path)
    description = run.inspect()
    import keras

    from keras_transformer.kernels.tensorflow.machine import choose_precision
    from keras_transformer.training.divergence import check_weights
    from keras_transformer.transformer import Transformer
    from keras_transformer.translation.translator import Translator

    name = run.file(MODEL)
    try:
        model = keras.saving.load_model(name, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises anything where a file is not what it seems
        raise ValueError(describe_corruption(name, error)) from error
    if not isinstance(model, Transformer):
        raise ValueError(f"{name} must contain a Transformer, received {type(model).__name__}.")
    check_weights(model, name)
    source_end = run.read_config().source_end if run.has(CONFIG) else True
    translator = Translator(model, *saved.load(run), source_end=source_end, card=description)
    translator = translator.in_precision(choose_precision(precision, model.dtype_policy.name))
    translator.default_search = find_search(run, {})
    return translator


def find_search(path: Path, options: Mapping[str, Any]) -> SearchConfig:
    """Returns the search of a run or an export: its own by default, with some options changed.

    An imported model, and what is fine-tuned from it, has the search of its own configuration, and
    an export with a beam that of its signature `beam`; all others have greedy search.

    Args:
        path: A run directory, or a SavedModel.
        options: Fields of `SearchConfig`.
    """
    run, own = Run.from_path(path), GREEDY
    if run.has(CONFIG):
        own = run.read_config().search
    elif os.path.isdir(path) and (versions(path) or os.path.exists(f"{path}/saved_model.pb")):
        own = find_exported_search(path, options.get("beam_size", 1))
    return resolve_search(None, options, own)


def open_model(
    path: Path, precision: str | None = None, allow_ops: Collection[str] = ()
) -> "Translator | ExportedTranslator":
    """Opens a run or an export.

    Args:
        path: A run directory, or a SavedModel's base or version directory.
        precision: Dtype policy of a run; see `load`.
        allow_ops: Additional ops allowed in a SavedModel; see `ExportedTranslator`.

    Returns:
        `Translator`, or `ExportedTranslator`, which does not import TensorFlow.
    """
    # Errors come first, as importing TensorFlow takes seconds.
    if not os.path.isdir(path):
        check_not_foreign(path)
        raise ValueError(f"{path} is not a directory: give a run directory or a SavedModel.")
    run = Run.from_path(path)
    if run.has_model or run.has(CONFIG):
        return load(run, precision)  # raises if the run has no model
    try:
        version_dir(path)
    except ValueError:
        check_not_foreign(path)
        raise ValueError(
            f"{path} is neither a run directory, with {MODEL}, nor a SavedModel, with "
            "saved_model.pb in it or in its highest version: give the --output of a training, or "
            "the directory of an export."
        ) from None
    if precision is not None:
        raise ValueError(
            f"--precision is for run directories, but {path} is a SavedModel: leave it out, or "
            "export the run again with --computation."
        )
    from keras_transformer.serving.exported_translator import ExportedTranslator

    return ExportedTranslator(path, allow_ops)


def open_translator(
    path: Path,
    search: SearchConfig | None = None,
    n_best: int | None = None,
    precision: str | None = None,
    prefixes: bool = False,
    allow_ops: Collection[str] = (),
) -> Callable[..., list[Any]]:
    """Opens a run or an export as a function.

    Args:
        path, precision, allow_ops: See `open_model`.
        search: `SearchConfig`; by default that of the run, see `find_search`.
        n_best: Number of translations per text, see `Translator.translate_n_best`; None for one
            string per text.
        prefixes: Whether prefixes will be passed.

    Returns:
        Function `translate(texts, prefixes=None, first=0)` that returns the list of translations.
        `prefixes` are the beginnings of the translations, and `first` is the number of the first
        text, if longer input is translated in several calls.

    Raises:
        ValueError: If `open_model` raises, or a SavedModel does not support the search.
    """
    search = search or find_search(path, {})
    check_n_best(n_best, search)
    model = open_model(path, precision, allow_ops)
    is_run = Run.from_path(path).has_model
    if not is_run:
        model.check_search(search, prefixes)
    method: Callable[..., list[Any]] = model.translate
    if n_best is not None:
        method = functools.partial(model.translate_n_best, n_best=n_best)

    count, tags = 0, _find_language_tags(getattr(model, "card", {}))

    def translate(texts, prefixes=None, first=0):
        nonlocal count
        count += len(texts)
        starts = (text.lstrip() for text in (as_bytes(texts) if tags else ()))
        if not all(start.startswith(tags) for start in starts if start):
            _warn_of_missing_tag(tags)
        if is_run:
            model.run_eagerly(count <= EAGER_SENTENCES)
        return method(texts, search=search, prefixes=prefixes, first=first)

    return translate


def _find_language_tags(card):
    """The tags that sources of a multilingual model begin with, unless an export puts one there."""
    tags = card.get("imported", {}).get("language_tags", ())
    return () if card.get("prefix_token") else tuple(str(tag).encode() for tag in tags)


@functools.cache  # once per process
def _warn_of_missing_tag(tags):
    print(
        f"warning: a source has no language tag, such as {tags[0].decode()}: the model does not "
        "know which language to translate into",
        file=sys.stderr,
    )


# --- averaging ---


def average_checkpoints(paths: Sequence[Path], output: Path) -> None:
    """Writes the arithmetic mean of several weights files.

    "Attention Is All You Need" (§6.1) averages the last checkpoints of a training.

    Args:
        paths: Names of `.weights.h5` files of one architecture.
        output: Name of the file to write, which may be one of them.

    Raises:
        ValueError: If no file is given, one cannot be read, or weights differ in name or shape or
            are not finite.

    Example:

    >>> names = ["1.weights.h5", "2.weights.h5"]
    >>> for name in names:
    ...     history = model.fit(dataset, shuffle=False, verbose=0)
    ...     model.save_weights(name)
    >>> average_checkpoints(names, "mean.weights.h5")
    >>> model.load_weights("mean.weights.h5")
    """
    import h5py  # not needed for exports

    if not paths:
        raise ValueError("paths must not be empty: give at least one weights file.")
    means = _read_weights(paths[0])
    for count, path in enumerate(paths[1:], start=2):
        weights = _read_weights(path)
        for name in means.keys() | weights.keys():
            shapes = [x[name].shape if name in x else "none" for x in (means, weights)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{path} must have the weights of {paths[0]}, but {name} has shape "
                    f"{shapes[1]} instead of {shapes[0]}: average checkpoints of one training."
                )
            means[name] += (weights[name] - means[name]) / count
    with open(paths[0], "rb") as file:
        content = io.BytesIO(file.read())  # a copy of the first file, with other numbers
    with h5py.File(content, "r+") as file:
        for name, mean in means.items():
            file[name][...] = mean
    with replacing(output) as name, open(name, "wb") as file:
        file.write(content.getbuffer())


def load_mean(run: Run, model: "keras.Model", checkpoints: Iterable[dict[str, Any]]) -> None:
    """Loads the mean of several weights of a run into a model.

    Args:
        run: `Run`.
        model: A built model with the architecture of the run.
        checkpoints: Some of `run.read_state()["checkpoints"]`.
    """
    files: list[str] = []
    for one in checkpoints:
        if not re.fullmatch(WEIGHTS_PATTERN, str(one["file"])):
            raise ValueError(f"The checkpoint {one['file']!r} is not a file of {run}.")
        files.append(run.file(CHECKPOINTS, one["file"]))
        check_checksum(files[-1], one["sha256"])
    Probe(files).answers()  # in a separate process, before native code reads them here
    with tempfile.TemporaryDirectory() as folder:
        mean = os.path.join(folder, "mean.weights.h5")
        average_checkpoints(files, mean)
        model.load_weights(mean)


def describe_members(
    state: dict[str, Any], checkpoints: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Describes the checkpoints of a mean: {"epoch 3": its step and scores, …}."""
    names = "step", "val_loss", *SCORES
    rows = {one["epoch"]: state["history"][one["epoch"] - 1] for one in checkpoints}
    return {
        f"epoch {epoch}": {name: rows[epoch][name] for name in names if name in rows[epoch]}
        for epoch in sorted(rows)
    }


def is_mean_worse(state: dict[str, Any], scores: dict[str, float], joined: dict[str, Any]) -> bool:
    """Returns whether a mean is worse than the best checkpoint; warns on stderr if so.

    Args:
        state: State of the training; see `Run.read_state`.
        scores: Scores of the mean.
        joined: `describe_members` of the mean.
    """
    monitor, best = state["monitor"], rank(state)[0]
    if list(joined) == [f"epoch {best['epoch']}"]:  # its scores may differ by rounding
        return False
    alone = state["history"][best["epoch"] - 1]
    worse = ranking_key(monitor, scores) > ranking_key(monitor, alone)
    if worse:
        names = dict.fromkeys((monitor, "val_loss"))
        mean, one = (", ".join(f"{name} {x[name]:.4g}" for name in names) for x in (scores, alone))
        subject = f"the mean of {', '.join(joined)}" if len(joined) > 1 else next(iter(joined))
        print(
            f"warning: {subject} ({mean}) is worse than epoch {best['epoch']} ({one})",
            file=sys.stderr,
        )
    return worse


@tolerate_closed_stderr()
def average(path: Path, output: Path, number: int = 5, by: str = "best") -> None:
    """Averages checkpoints of a run into a new run directory.

    The mean is validated like the run; a warning is printed on stderr if it is worse than the best
    checkpoint.

    Args:
        path: A run directory.
        output: The directory to create, which can be used to translate, evaluate and export.
        number: Number of checkpoints, at most `keep_checkpoints`.
        by: `"best"` or `"last"`.
    """
    run = Run.from_path(path)
    state = run.read_state()
    if by not in ("best", "last"):
        raise ValueError(f'by must be "best" or "last", received {by!r}.')
    if state is None and run.has(CONFIG) and run.read_config().is_imported:
        raise ValueError(
            f"{path} is an imported model, which has no checkpoints to average: fine-tune it with "
            "train --start-from, and average that run."
        )
    if state is None:
        raise ValueError(f"{path} has no checkpoints: give the --output of a training.")
    held = len(state["checkpoints"])
    if not 1 <= number <= held:
        raise ValueError(
            f"number must be from 1 to {held}, the checkpoints in {path}, received {number}: train "
            "with a larger --keep-checkpoints to average more."
        )
    if os.path.exists(output):
        raise ValueError(f"{output} already exists: choose another name.")
    chosen = rank(state)[:number] if by == "best" else state["checkpoints"][-number:]
    from keras_transformer.runs.validation import (
        validate_translator,
    )  # after errors: it takes seconds

    translator, joined = load(run), describe_members(state, chosen)
    load_mean(run, translator.model, chosen)
    scores = validate_translator(run, translator)
    if scores:
        is_mean_worse(state, scores, joined)
    with creating(output) as temporary:
        for name in (*saved.paths(run), *map(run.file, (CONFIG, DATA, EXAMPLES))):
            if os.path.exists(name):
                shutil.copy(name, temporary)
        Run(temporary).write_model(translator.model, {"metrics": scores, "mean_of": joined})


def _read_weights(path):
    """Reads the arrays of a weights file by name, in float64."""
    import h5py

    arrays = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[...].astype("float64")
            if not np.isfinite(arrays[name]).all():
                raise ValueError(
                    f"The weights in {path} must be finite, received others in {name}: average "
                    "checkpoints from before the training diverged."
                )

    try:
        with h5py.File(os.fspath(path), "r") as file:
            file.visititems(collect)
    except OSError as error:
        raise ValueError(f"{path} is not a readable weights file: {error}.") from error
    return arrays
