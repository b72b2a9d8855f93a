"""Opens what a training has left: as a translator, or whatever translates."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_transformer.presets import GREEDY, SearchConfig, check_precision
from keras_transformer.runs.files import CONFIG, MODEL, SOURCE, TARGET, describe, is_run
from keras_transformer.typing import Path

if TYPE_CHECKING:
    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.translation.translator import Translator

FEW = 2  # sentences, so few that decoding them takes less time than making a graph of it


def load(path: Path, precision: str | None = None) -> "Translator":
    """Loads a trained translator.

    Args:
        path: A run directory.
        precision: What to compute in: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or
            `"auto"`, whichever of the first two is faster on this machine. By default as it was
            trained, but in float32 where that is as fast.

    Returns:
        `Translator`.

    Raises:
        ValueError: If `path` is no run directory, or one whose training has saved no model yet; or
            there is no such precision.

    Example:

    >>> keras_transformer.load("runs/dates").translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """
    if not is_run(path):
        raise ValueError(
            f"{path} is no run directory (no {MODEL} and {SOURCE} in it): give the --output of a "
            "training that has finished an epoch."
        )
    check_precision(precision)
    import keras

    from keras_transformer.kernels.tensorflow.precision import choose
    from keras_transformer.transformer import Transformer  # noqa: F401, registers the class
    from keras_transformer.translation.translator import Translator

    model = keras.saving.load_model(os.path.join(path, MODEL), compile=False)
    translator = Translator(model, *load_tokenizers(path))
    translator = translator.in_precision(choose(precision, model.dtype_policy.name))
    translator.card = describe(path)
    return translator


def open_translator(
    path: Path, search: SearchConfig = GREEDY, n_best: bool = False, precision: str | None = None
) -> Callable[..., list[Any]]:
    """Opens whatever can translate.

    Args:
        path: A run directory, or a SavedModel's base or version directory.
        search: `SearchConfig`.
        n_best: Whether to find several translations, as `Translator.translate_n_best` does.
        precision: What a run computes in, as `load` has it.

    Returns:
        Function from a list of strings, in any order, to the list of their translations; and from
        `prefixes`, None or a list of what these begin with.

    Raises:
        ValueError: If `path` is neither, or a SavedModel that is to decode otherwise than it does.
    """
    # Mistakes first: importing TensorFlow takes seconds.
    if not os.path.isdir(path):
        raise ValueError(f"{path} is no directory: give a run directory or a SavedModel.")
    check_precision(precision)
    if not is_run(path) and os.path.exists(os.path.join(path, CONFIG)):
        load(path)  # a run without a model: says so
    if precision is not None and not is_run(path):
        raise ValueError(
            f"{path} is a SavedModel, which computes in what it was exported for: leave out "
            "--precision, or export it anew with --computation."
        )
    if is_run(path):
        translator = load(path, precision)
        method = translator.translate_n_best if n_best else translator.translate

        def translate_run(texts, prefixes=None):
            if len(texts) <= FEW:
                translator.run_eagerly()
            return method(texts, search=search, prefixes=prefixes)

        return translate_run
    exported = _open_exported(path)

    def translate(texts, prefixes=None):
        if n_best or search != GREEDY or prefixes is not None:
            raise ValueError(
                f"{path} is a SavedModel, which decodes greedily only: leave out the options of "
                "the search, or give the run directory it was exported from."
            )
        return exported(texts)

    return translate


def _open_exported(path):
    """A function from texts to translations, where possible without TensorFlow's import."""
    from keras_transformer.serving.versions import version_dir

    directory = version_dir(path)  # where there is none: says so
    if sys.platform.startswith("linux"):
        from keras_transformer.serving.exported_translator import translate_exported

        return lambda texts: translate_exported(directory, texts)
    from keras_transformer.serving.saved_model import load_saved_model
    from keras_transformer.translation.sentence_batches import translate_sorted

    loaded = load_saved_model(directory)
    return lambda texts: translate_sorted(lambda rows: loaded(rows)[0], texts)


def load_tokenizers(path: Path) -> "tuple[SubwordTokenizer, SubwordTokenizer]":
    """Reads a run's source and target tokenizer: one object if they are the same."""
    from keras_transformer.tokenizers.subword import SubwordTokenizer

    source, target = (SubwordTokenizer.load(os.path.join(path, name)) for name in (SOURCE, TARGET))
    return source, source if source.model == target.model else target
