"""Opens a run or an export once: found and checked without TensorFlow, loaded when it is used."""

import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.presets import resolve_search
from keras_transformer.presets.options import check_precision
from keras_transformer.runs.run import CONFIG, MODEL, Run, check_not_foreign
from keras_transformer.serving.versions import (
    find_exported_search,
    read_card,
    version_dir,
    versions,
)
from keras_transformer.tokenizers import saved
from keras_transformer.translation.sentences import as_bytes
from keras_transformer.utils import Path, describe_corruption

if TYPE_CHECKING:
    from keras_transformer.translation.translator import Translator

EAGER_SENTENCES = 2  # decoding up to so few eagerly is faster than tracing a graph


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
    run = Run(path)
    return _load_run(run, run.inspect(), precision)


class Opened:
    """A run or an export, checked. Errors come first, as importing TensorFlow takes seconds.

    An imported model, and what is fine-tuned from it, has the search of its own configuration by
    default, and an export with a beam that of its signature `beam`; all others have greedy search.
    `options` change fields of it. For `precision` see `load`, for `allow_ops` `ExportedTranslator`.

    Attributes:
        run: The `Run`; None for an export.
        search: The `SearchConfig`.
        card: Dict that describes the model, as the model card of an export does.
    """

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any] | None = None,
        precision: str | None = None,
        allow_ops: Collection[str] = (),
    ) -> None:
        check_precision(precision)
        if not os.path.isdir(path):
            check_not_foreign(path)
            raise ValueError(f"{path} is not a directory: give a run directory or a SavedModel.")
        self.path, self._precision, self._allow_ops = path, precision, allow_ops
        run, options = Run(path), options or {}
        self.run = run if run.has_model or run.has(CONFIG) else None
        if self.run is not None:
            self.card, own = run.inspect(), run.read_search()
        else:
            self.card = read_card(_find_version(path))
            if precision is not None:
                raise ValueError(
                    f"--precision is for run directories, but {path} is a SavedModel: leave it "
                    "out, or export the run again with --computation."
                )
            own = find_exported_search(path, options.get("beam_size", 1))
        self.search = resolve_search(None, options, own)

    @functools.cached_property
    def model(self) -> Any:
        """`Translator`, or `ExportedTranslator`, which does not import TensorFlow; loaded once."""
        if self.run is not None:
            return _load_run(self.run, self.card, self._precision)
        from keras_transformer.serving.exported_translator import ExportedTranslator

        return ExportedTranslator(self.path, self._allow_ops)

    @property
    def bleu_tokenize(self) -> str:
        """sacreBLEU's tokenizer in the validation of the run; `"13a"` if unknown."""
        return self.card.get("recipe", {}).get("bleu_tokenize", "13a")

    def detokenizing_losses(self, references: Sequence[str]) -> str:
        """Describes what the target vocabulary cannot write of references; empty if nothing.

        Of an export, only what its card says about a WordPiece vocabulary is known.
        """
        if self.run is not None:
            from keras_transformer.tokenizers.saved import describe_lost

            return describe_lost(saved.read(self.run)[1], references)
        target = self.card.get("vocabulary", {}).get("target", {})
        return f"it loses {losses}" if (losses := target.get("detokenizing_loses")) else ""

    def translator(self, n_best: int | None = None, prefixes: bool = False) -> "SentenceTranslator":
        """Returns a function `translate(texts, prefixes=None, first=0)`.

        `n_best` is that of `Translator.translate_n_best`, or None for one string per text, and
        `prefixes` is whether prefixes will be passed. If longer input is translated in several
        calls, `first` is the number of the first text.
        """
        return SentenceTranslator(self, n_best, prefixes)


class SentenceTranslator:
    """Translates lists of sentences with the search of an opened model; see `Opened.translator`.

    Attributes:
        count: Number of sentences so far.
    """

    def __init__(self, opened: Opened, n_best: int | None, prefixes: bool) -> None:
        self._model: Any = opened.model
        self._search = opened.search
        self._runs_here = opened.run is not None
        if not self._runs_here:
            self._model.check_search(self._search, prefixes)
        self._method: Callable[..., list[Any]] = self._model.translate
        if n_best is not None:
            self._method = functools.partial(self._model.translate_n_best, n_best=n_best)
        self._tags = _find_language_tags(opened.card)
        self.count = 0

    def __call__(self, texts: Any, prefixes: Any = None, first: int = 0) -> list[Any]:
        self.count += len(texts)
        starts = (text.lstrip() for text in (as_bytes(texts) if self._tags else ()))
        if not all(start.startswith(self._tags) for start in starts if start):
            _warn_of_missing_tag(self._tags)
        if self._runs_here:
            self._model.run_eagerly = self.count <= EAGER_SENTENCES
        return self._method(texts, search=self._search, prefixes=prefixes, first=first)


def _load_run(run: Run, card: dict[str, Any], precision: str | None) -> "Translator":
    """Loads an inspected run."""
    import keras

    from keras_transformer.kernels.tensorflow.machine import choose_precision
    from keras_transformer.training.keras_workarounds import check_weights
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
    translator = Translator(model, *saved.load(run), source_end=source_end, card=card)
    translator = translator.in_precision(choose_precision(precision, model.dtype_policy.name))
    translator.default_search = run.read_search()
    return translator


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
            "saved_model.pb in it or in its highest version: give the --output of a training, or "
            "the directory of an export."
        ) from None


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
