"""Writes, checks and publishes base/<version>/, the layout that TF Serving watches; and reads it.

A server polls `base` and loads every directory whose name is an integer as soon as it sees one,
complete or not. So a version is written beside its place under a name that servers ignore, such as
`tmp.3`, tried out there, flushed to disk, and moved into place by one rename.
"""

import contextlib
import functools
import numbers
import os
from collections.abc import Callable, Collection

import tensorflow as tf

from keras_transformer.data.pairs import read_sides
from keras_transformer.kernels.tensorflow.machine import exact_float32
from keras_transformer.presets import GREEDY, ExportConfig
from keras_transformer.presets.languages import Languages
from keras_transformer.serving.served_translator import functions_of, run_signature, to_lists
from keras_transformer.serving.server_process import (
    ServerProcess,
    is_supported,
    loadable_path,
    one_line,
)
from keras_transformer.serving.structure import inspect_version
from keras_transformer.serving.trial import (
    ADVERSARIAL_INPUTS,
    Answer,
    Finding,
    check,
    write_warm_up,
)
from keras_transformer.serving.versions import (
    DEFAULT,
    GRAPH,
    MAX_VERSION,
    PLACEHOLDERS,
    SIGNATURES,
    describe,
    make_inputs,
    read_card,
    version_dir,
    versions,
    write_card,
)
from keras_transformer.translation.sentences import as_bytes
from keras_transformer.translation.translator import Translator
from keras_transformer.utils import Pairs, Path, creating, open_locked

# Not the op registry, which also holds the ops of other libraries that this process has loaded. A
# server has no Python, and XLA is switched off.
CORE_OPS = frozenset(name for name in vars(tf.raw_ops) if "Py" not in name and "Xla" not in name)


def export(
    translator: Translator | tf.Module,
    base: Path,
    version: int | None = None,
    config: ExportConfig | None = None,
    pairs: Pairs = (),
    report: Callable[[list[Finding]], None] | None = None,
) -> str:
    """Publishes a translator as the SavedModel directory `base/<version>`.

    The version appears complete or not at all, and an existing one is never changed. It is tested
    first (`check`): its structure, and, on Linux, in a process that loads it as a server does,
    whether it gives the answers of the model in memory, for any content.

    Args:
        translator: a `Translator`; or a tf.Module whose `serve` is a tf.function with the inputs
            and outputs of `serving_default`, which is then the only signature.
        base: path of the directory that holds all versions of the model; created if missing.
        version: a positive integer; by default the highest version in `base` plus one.
        config: `ExportConfig`; by default with the translator's `default_search`, which a
            configuration of your own replaces: `ExportConfig.for_search` changes some fields.
        pairs: pairs of source and translation, best the validation set: for warm-up requests and
            the model card.
        report: function that is called with the `Finding`s, whether or not there are problems.

    Returns:
        The path of the published directory.

    Raises:
        ValueError: if an argument is invalid, the version exists, the weights are not finite, or
            the saved model is not fit to be served.

    Example:
        >>> path = export(translator, "export/models/dates")  # ends with export/models/dates/1
    """
    if config is not None:
        _check_config(translator, config)
    config = config or ExportConfig.for_search(getattr(translator, "default_search", GREEDY))
    base = _check_base(os.fspath(base))
    sides = ([text.decode(errors="replace") for text in as_bytes(x)] for x in read_sides(pairs))
    pairs = list(zip(*sides, strict=True))
    module, functions = functions_of(translator, config)
    with _creating_version(base, version) as (temporary, target), exact_float32():
        _save(module, functions, temporary)
        run = functools.partial(run_signature, functions)
        card = describe(translator, run, functions, config, pairs)
        write_warm_up(temporary, _warm_up_requests(functions, pairs, card))
        # Last: it holds the checksums of all others.
        write_card(temporary, card)
        requests = [(name, make_inputs(name, ADVERSARIAL_INPUTS, card=card)) for name in functions]
        answers = [Answer(*one, run(*one)) for one in requests]
        # A caller's own module may compute anything that a server can.
        findings = check(temporary, answers, CORE_OPS)
        if report:
            report(findings)
        if problems := [problem for finding in findings for problem in finding.problems]:
            raise ValueError(f"A server could not use the translator. {' '.join(problems[:5])}")
    return target


def load_saved_model(
    path: Path, allow_ops: Collection[str] = ()
) -> Callable[..., tuple[list[str], list[float]]]:
    """Loads an exported model as a function from texts to translations.

    First its files are compared with their checksums, its graph is checked (`check_structure`), and
    a separate process loads it; only then does this one.

    Args:
        path: a version directory; or the base directory, of which the highest version is taken,
            as TF Serving does.
        allow_ops: names of ops that its graph may hold besides those of this package's exports,
            such as those of a tokenizer of your own.

    Returns:
        A function that takes a list of B strings and returns a list of B translations and a
        list of their B log-probabilities (natural logarithm). That of an export of several
        languages also takes `source_language` and `target_language`: see `Translator.translate`.

    Raises:
        ValueError: if there is no SavedModel, it is corrupted, not a translator's, or does more
            than translate.

    Example:

    >>> translate = load_saved_model("export/models/dates/1")
    >>> texts, log_probs = translate(["samedi 9 mai 1998"])
    >>> texts
    ['1998-05-09']
    """
    # Imported for its side effect: it registers the tokenizers' ops that the graph contains.
    from keras_transformer.tokenizers import subword  # noqa: F401

    directory = version_dir(os.fspath(path))
    inspect_version(directory, allow_ops)
    try:
        if is_supported():
            # Native code may end that process, not this one.
            ServerProcess(directory, limited=True).close()
        with loadable_path(directory) as path:
            loaded = tf.saved_model.load(path)
    except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"{directory} cannot be loaded as a SavedModel; export it again ({one_line(error)})."
        ) from error

    known = Languages.of_export(read_card(directory))

    def translate(texts, source_language=None, target_language=None):
        rows = {"text": as_bytes(texts)}
        rows |= known.columns(len(rows["text"]), source_language, target_language)
        inputs = {name: tf.constant(column, tf.string) for name, column in rows.items()}
        # A signature does not keep its model alive, so this closure does.
        outputs = loaded.signatures[DEFAULT](**inputs)
        return to_lists(outputs["text"].numpy()), outputs["log_prob"].numpy().tolist()

    return translate


def _check_config(translator, config):
    if not isinstance(config, ExportConfig):
        raise ValueError(f"config must be an ExportConfig, received {type(config).__name__}.")
    if not isinstance(translator, Translator):
        raise ValueError("config is for a Translator only: leave it out for another tf.Module.")


def _check_base(base):
    """Returns the absolute path of the directory of all versions."""
    if "://" in base:
        raise ValueError(f"{base} is a URL: export to a directory, and upload the version.")
    if os.path.exists(os.path.join(base, GRAPH)):
        raise ValueError(f"{base} is a version: give the directory above it.")
    return os.path.abspath(base)


def _save(module, functions, directory):
    signatures = {name: function.get_concrete_function() for name, function in functions.items()}
    # Nobody trains an export: gradients would make it two and a half times as many functions.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, directory, signatures=signatures, options=options)


def _warm_up_requests(functions, pairs, card):
    """Requests with one row and with 32, to every signature that a server may batch."""
    requests = []
    sources, targets = zip(*pairs, strict=True) if pairs else (PLACEHOLDERS,) * 2
    for name in functions:
        for rows in (1, 32) if SIGNATURES[name].batchable else ():
            inputs = make_inputs(name, sources[:rows], targets[:rows], card)
            specs = SIGNATURES[name].inputs_with(inputs)
            tensors = {key: tf.constant(inputs[key], dtype) for key, (_, dtype) in specs.items()}
            requests.append((name, tensors))
    return requests


@contextlib.contextmanager
def _creating_version(base, version):
    """Yields the path to write a version to, and the one where it appears at the end."""
    try:
        os.makedirs(base, exist_ok=True)
        lock = open_locked(base)
    except OSError as error:
        raise ValueError(f"{base} is not a directory to write to: {error.strerror}.") from error
    if lock is None:
        raise ValueError(f"Another export into {base} is under way: wait until it ends.")
    try:
        target = os.path.join(base, str(_free_version(base, version)))
        with creating(target) as temporary:
            yield temporary, target
    except tf.errors.OpError as error:
        if base not in str(error):
            raise  # not about the disk
        raise ValueError(f"{target} cannot be created: {one_line(error)}.") from error
    finally:
        os.close(lock)


def _free_version(base, version):
    """The version to publish, which does not exist."""
    taken = versions(base)
    if version is None:
        version = max(taken, default=0) + 1
    is_integer = isinstance(version, numbers.Integral) and version is not True
    if not is_integer or not 1 <= version <= MAX_VERSION:
        raise ValueError(
            f"version is {version!r}; expected an integer from 1 to {MAX_VERSION}, or None."
        )
    if version in taken:
        raise ValueError(
            f"Version {version} is already in {base}: leave it out to get {max(taken) + 1}."
        )
    return version
