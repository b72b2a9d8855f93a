"""Opens a run or an export once: found and checked without TensorFlow, loaded when it is used.

Keras makes whatever the `config.json` in a `.keras` file says, by name. So nothing may stand there
but this package's classes, those of Keras that only hold values, and what the calling program has
registered: `inspect_model`.
"""

import functools
import logging
import os
import sys
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.presets import resolve_search
from keras_transformer.presets.languages import Languages
from keras_transformer.presets.options import PRECISIONS, check_value
from keras_transformer.runs.run import (
    CONFIG,
    DATA,
    MODEL,
    MODEL_SCORES,
    Run,
    check_not_foreign,
)
from keras_transformer.serving.versions import (
    find_exported_search,
    read_card,
    version_dir,
    versions,
)
from keras_transformer.tokenizers import saved
from keras_transformer.utils import Path, check_files, describe_corruption, read_json

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator

logger = logging.getLogger(__name__)

EAGER_SENTENCES = 2  # decoding up to so few eagerly is faster than tracing a graph

# The members of an archive.
MEMBERS = ("config.json", "metadata.json", "model.weights.h5")
PACKAGE = "keras_transformer"
# Keras' modules whose classes only hold values.
VALUES = ("keras.dtype_policies", "keras.initializers", "keras.quantizers")


def load(path: Path | Sequence[Path], precision: str | None = None) -> "Translator":
    """Loads a trained translator.

    No code in the run is executed, and nothing outside it is read: it is checked first. Register
    your own classes before (`keras.saving.register_keras_serializable`).

    Args:
        path: A run directory; or several with the same vocabularies, an ensemble: they translate
            together, by the mean of their probabilities.
        precision: Dtype policy: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or `"auto"`,
            the faster of the first two on this machine. By default that of the training, or float32
            if that is as fast.

    Returns:
        `Translator`.

    Raises:
        ValueError: If `path` is not a run directory with a model; if it is corrupted, has weights
            that are not finite, or contains unknown classes; if runs have other vocabularies than
            the first; or the precision is unknown.

    Example:

    >>> keras_transformer.load("runs/dates").translate(["samedi 9 mai 1998"])
    ['1998-05-09']
    """
    opened = Opened(path, precision=precision)
    if opened.run is None:
        raise ValueError(f"{path} is a SavedModel: give a run directory, or use load_saved_model.")
    return opened.model


class Opened:
    """A run, several as an ensemble, or an export, checked before TensorFlow is imported.

    An imported model, and what is fine-tuned from it, has the search of its own configuration by
    default, and an export with a beam that of its signature `beam`; all others have greedy search.
    `options` change fields of it. For `precision` see `load`, for `allow_ops` `ExportedTranslator`.

    Attributes:
        run: The `Run`; of an ensemble the first, which gives `search` and `card`; None for an
            export.
        search: The `SearchConfig`.
        languages: `Languages` of the model.
        card: Dict that describes the model, as the model card of an export does.
    """

    def __init__(
        self,
        path: Path | Sequence[Path],
        options: Mapping[str, Any] | None = None,
        precision: str | None = None,
        allow_ops: Collection[str] = (),
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        if precision is not None:
            check_value("precision", precision, PRECISIONS)
        paths = [path] if isinstance(path, (str, os.PathLike)) else [*path]
        if not paths:
            raise ValueError("Expected a run directory, or several, received none.")
        path, *others = paths
        if not os.path.isdir(path):
            check_not_foreign(path)
            raise ValueError(f"{path} is not a directory: give a run directory or a SavedModel.")
        self.path, self._precision, self._allow_ops = path, precision, allow_ops
        run, options = Run(path), options or {}
        self.run = run if run.has_model or run.has(CONFIG) else None
        if self.run is not None:
            self.card, own = inspect_run(run), run.read_search()
            languages = run.read_config().find_languages() if run.has(CONFIG) else Languages()
        else:
            self.card = read_card(_find_version(path))
            if precision is not None:
                raise ValueError(
                    f"{path} is a SavedModel, whose precision is fixed: give the run directory, "
                    "or leave out --precision."
                )
            own = find_exported_search(path, options.get("beam_size", 1))
            languages = Languages.of_export(self.card)
        self.search = resolve_search(None, options, own)
        self.languages = languages.choose(source_language, target_language)
        self._others = [self._open_other(other) for other in others]
        names = [os.path.realpath(one) for one in paths]
        for name in {name for name in names if names.count(name) > 1}:
            logger.warning(f"{name} counts {names.count(name)} times in the ensemble.")

    def _open_other(self, path):
        """Opens another run of an ensemble, which must fit to the first."""
        other = Opened(path, None, self._precision)
        for one in (self, other):
            if one.run is None:
                raise ValueError(f"{one.path} is a SavedModel: an ensemble consists of runs.")
        if saved.read(other.run) != saved.read(self.run):
            raise ValueError(
                f"{path} has other vocabularies than {self.path}: the runs of an ensemble need the "
                "same: train them on one prepared corpus, or on the same text with --valid-source."
            )
        if other._conventions != self._conventions:
            raise ValueError(
                f"{path} has other tokens around sources than {self.path}: the runs of an ensemble "
                "need the same languages and the same source_end."
            )
        return other

    @property
    def _conventions(self):
        """What else than the vocabularies the ids of a text depend on."""
        source_end = self.run.read_config().source_end if self.run.has(CONFIG) else True
        return source_end, self.languages.tokens, self.languages.order

    @functools.cached_property
    def model(self) -> Any:
        """`Translator`, or `ExportedTranslator`, which does not import TensorFlow; loaded once."""
        translator: Any
        if self.run is None:
            from keras_transformer.serving.exported_translator import ExportedTranslator

            translator = ExportedTranslator(self.path, self._allow_ops)
            translator.languages = self.languages
            return translator
        from keras_transformer.translation.translator import Translator

        models = [one._load_model() for one in (self, *self._others)]
        source_end, *_ = self._conventions
        tokenizers = saved.load(self.run)
        translator = Translator(models, *tokenizers, source_end=source_end, card=self.card)
        translator.default_search, translator.languages = self.search, self.languages
        return translator

    def _load_model(self):
        """Loads the `Transformer` of the run."""
        import keras

        from keras_transformer.kernels.tensorflow.machine import choose_precision
        from keras_transformer.training.keras_workarounds import building_zeros, check_weights
        from keras_transformer.transformer import Transformer
        from keras_transformer.translation.ensemble import in_precision

        name = self.run.file(MODEL)
        try:
            with building_zeros():
                model = keras.saving.load_model(name, compile=False, safe_mode=True)
        except Exception as error:  # Keras raises anything where a file is not what it seems
            raise ValueError(describe_corruption(name, error)) from error
        if not isinstance(model, Transformer):
            raise ValueError(f"{name} must contain a Transformer, received {type(model).__name__}.")
        check_weights(model, name)
        return in_precision(model, choose_precision(self._precision, model.dtype_policy.name))

    @property
    def bleu_tokenize(self) -> str:
        """sacreBLEU's tokenizer in the validation of the run; `"13a"` if unknown."""
        return self.card.get("recipe", {}).get("bleu_tokenize", "13a")

    def detokenizing_losses(self, references: Sequence[str]) -> str:
        """Describes what the target vocabulary cannot write of references; empty if nothing.

        Of an export, only what its card says about a WordPiece vocabulary is known.
        """
        if self.run is not None:
            return saved.describe_lost(saved.read(self.run)[1], references)
        target = self.card.get("vocabulary", {}).get("target", {})
        return f"it loses {losses}" if (losses := target.get("detokenizing_loses")) else ""


class SentenceTranslator:
    """Translates lists of sentences with the search of an opened model.

    `n_best` is that of `Translator.translate_n_best`, or None for one string per text, and
    `prefixes` is whether prefixes will be passed. If longer input is translated in several calls,
    `first` is the number of the first text.

    Attributes:
        count: Number of sentences so far.
    """

    def __init__(self, opened: Opened, n_best: int | None = None, prefixes: bool = False) -> None:
        if opened.languages.num_forced or opened.run is None:
            opened.languages.columns(0)  # raises if one is missing
        self._model: Any = opened.model
        self._search = opened.search
        self._runs_here = opened.run is not None
        if not self._runs_here:
            self._model.check_search(self._search, prefixes)
        self._method: Callable[..., list[Any]] = self._model.translate
        if n_best is not None:
            self._method = functools.partial(self._model.translate_n_best, n_best=n_best)
        self.count = 0

    def __call__(self, texts: Any, prefixes: Any = None, first: int = 0) -> list[Any]:
        self.count += len(texts)
        if self._runs_here:
            self._model.run_eagerly = self.count <= EAGER_SENTENCES
        return self._method(texts, search=self._search, prefixes=prefixes, first=first)


def _find_version(path):
    """Returns the directory of the export at a path, or explains what is missing there."""
    try:
        return version_dir(path)
    except ValueError:
        if versions(path):  # the highest one is broken
            raise
        check_not_foreign(path)
        raise ValueError(
            f"{path} is neither a run directory, with {MODEL}, nor a SavedModel, with "
            "saved_model.pb in it or in its highest version."
        ) from None


# --- inspection, before anything is loaded ---


def inspect_run(run: Run) -> dict[str, Any]:
    """Checks that a run is not corrupted and is safe to load; returns its description.

    Files are compared with their checksums, and `model.keras` is inspected. Neither Keras nor
    TensorFlow is imported.
    """
    if not run.has_model:
        check_not_foreign(run)
        raise ValueError(
            f"{run} is not a run directory with {MODEL}: it must have completed an epoch."
        )
    names = [MODEL, *map(os.path.basename, saved.require_paths(run)), CONFIG, DATA]
    check_files(run, run.read_scores(), MODEL_SCORES, filter(run.has, names))
    inspect_model(run.file(MODEL))
    return run.describe()


def inspect_model(path: Path) -> None:
    """Raises an error for a `.keras` file that holds or names anything but what is allowed."""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                is_packed = info.compress_type != zipfile.ZIP_STORED
                if info.filename not in MEMBERS or is_packed or info.file_size > info.compress_size:
                    raise ValueError(
                        f"{path} holds {info.filename!r} in a way that Keras does not: expected "
                        f"{', '.join(MEMBERS)}, uncompressed."
                    )
                with archive.open(info):  # the header before it has the same values
                    pass
            config = read_json(f"{path}: {MEMBERS[0]}", archive.read(MEMBERS[0]))
            config["compile_config"] = None  # Keras ignores it with compile=False, see `Opened`
            _check_classes(config, path)
    except ValueError:
        raise
    except Exception as error:  # the formats have many
        raise ValueError(describe_corruption(path, error)) from None


def _check_classes(value, path):
    """Raises an error for what Keras would create from `config.json`, unless it is allowed."""
    if isinstance(value, dict):
        if {"class_name", "registered_name", "module"} & value.keys():
            _check_class(value, path)
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        _check_classes(item, path)


def _check_class(value, path):
    """Raises an error for a class or function, unless it is allowed."""
    module, name = str(value.get("module")), str(value.get("class_name"))
    registered = value.get("registered_name")
    if registered is None:
        is_allowed = module in VALUES or (module, name) == ("keras", "DTypePolicy")
    else:
        is_ours = module.partition(".")[0] == PACKAGE and registered == f"{PACKAGE}>{name}"
        saving = getattr(sys.modules.get("keras"), "saving", None)  # None if half imported
        is_allowed = is_ours or bool(saving and saving.get_registered_object(str(registered)))
    if not is_allowed:
        raise ValueError(
            f"{path}: refers to the {name[:80]} of {module[:80]!r}, which no model of this package "
            "uses: if it is your own, register it with "
            "keras.saving.register_keras_serializable before loading."
        )
