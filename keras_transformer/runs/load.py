"""Opens what a training has left: as a translator, or whatever translates."""

import functools
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from keras_transformer.inspection.keras_archive import damaged
from keras_transformer.options import check_precision
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.runs.files import CONFIG, MODEL, is_run
from keras_transformer.runs.opening import inspect_run
from keras_transformer.serving.versions import version_dir
from keras_transformer.tokenizers import saved
from keras_transformer.translation.hypotheses import check_n_best
from keras_transformer.typing import Path

if TYPE_CHECKING:
    from keras_transformer.serving.exported_translator import ExportedTranslator
    from keras_transformer.translation.translator import Translator

FEW = 2  # sentences, so few that decoding them takes less time than making a graph of it


def load(path: Path, precision: str | None = None) -> "Translator":
    """Loads a trained translator.

    Nothing that a run holds is run, and nothing outside it is read: `runs.opening` looks at it
    first. Classes of your own have to be registered before
    (`keras.saving.register_keras_serializable`).

    Args:
        path: A run directory.
        precision: What to compute in: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or
            `"auto"`, whichever of the first two is faster on this machine. By default as it was
            trained, but in float32 where that is as fast.

    Returns:
        `Translator`.

    Raises:
        ValueError: If `path` is no run directory, or one whose training has saved no model yet; if
            it is damaged, has weights that are not finite, or names what no model of a training is
            made of; or there is no such precision.

    Example:

    >>> keras_transformer.load("runs/dates").translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """
    check_precision(precision)
    description = inspect_run(path)
    import keras

    from keras_transformer.kernels.tensorflow.precision import choose
    from keras_transformer.training.divergence import check_weights
    from keras_transformer.transformer import Transformer
    from keras_transformer.translation.translator import Translator

    name = os.path.join(path, MODEL)
    try:
        model = keras.saving.load_model(name, compile=False, safe_mode=True)
    except Exception as error:  # whatever Keras meets in a file that is not what it seems
        raise ValueError(damaged(name, error)) from error
    if not isinstance(model, Transformer):
        raise ValueError(f"{name} holds a {type(model).__name__}, expected a Transformer.")
    check_weights(model, name)
    translator = Translator(model, *saved.load(path))
    translator = translator.in_precision(choose(precision, model.dtype_policy.name))
    translator.card = description
    return translator


def open_model(
    path: Path, precision: str | None = None, allow_ops: Collection[str] = ()
) -> "Translator | ExportedTranslator":
    """Opens whatever can translate.

    Args:
        path: A run directory, or a SavedModel's base or version directory.
        precision: What a run computes in, as `load` has it.
        allow_ops: What a SavedModel may hold besides, as `ExportedTranslator` has it.

    Returns:
        `Translator`, or `ExportedTranslator`, which loads no TensorFlow.

    Raises:
        ValueError: If `path` is neither, or a SavedModel that is to compute in another precision.
    """
    # Mistakes first: importing TensorFlow takes seconds.
    if not os.path.isdir(path):
        raise ValueError(f"{path} is no directory: give a run directory or a SavedModel.")
    check_precision(precision)
    if is_run(path) or os.path.exists(os.path.join(path, CONFIG)):
        return load(path, precision)  # a run without a model: says so
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
    """Opens whatever can translate, as a function.

    Args:
        path, precision, allow_ops: As `open_model` has them.
        search: `SearchConfig`.
        n_best: How many translations to find, as `Translator.translate_n_best` does; None for one
            string for each text.
        prefixes: Whether what translations begin with will be given.

    Returns:
        Function from a list of strings, in any order, to the list of their translations; from
        `prefixes`, None or a list of what these begin with; and from the number of the `first`
        string, where a list is a part of many, which are translated one part after the other.

    Raises:
        ValueError: As `open_model` does, or if a SavedModel is to search otherwise than it does.
    """
    check_n_best(n_best, search)
    model = open_model(path, precision, allow_ops)
    run = is_run(path)
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
            model.run_eagerly(count <= FEW)
        return method(texts, search=search, prefixes=prefixes, first=first)

    return translate
