"""Writes, checks and publishes base/<version>/, the layout that TF Serving watches; and reads it.

A server polls `base` and loads every directory whose name is an integer as soon as it sees one,
complete or not. So a version is written beside its place under a name the server ignores, tried
out there, flushed to disk, and moved into place by one rename.
"""

import operator
import os
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.atomic_files import flush
from keras_transformer.presets import ExportConfig
from keras_transformer.serving import model_card
from keras_transformer.serving.acceptance.opening import inspect_version
from keras_transformer.serving.acceptance.server_process import (
    ServerProcess,
    is_supported,
    loadable_path,
    one_line,
)
from keras_transformer.serving.acceptance.trial import HOSTILE_ROWS, Finding, check
from keras_transformer.serving.precision_comparison import compare_precision
from keras_transformer.serving.served_translator import functions_of
from keras_transformer.serving.signatures import DEFAULT, SIGNATURES, make_inputs
from keras_transformer.serving.temporary_version import temporary_version
from keras_transformer.serving.versions import LARGEST_VERSION, refuse_other, version_dir, versions
from keras_transformer.serving.warm_up import write_warm_up
from keras_transformer.translation.corpus_scores import make_metrics
from keras_transformer.translation.sentence_batches import as_bytes
from keras_transformer.translation.translator import Translator
from keras_transformer.typing import Pairs, Path, Texts

DEFAULTS = ExportConfig()
# Not the op registry, which also holds what other libraries this process has loaded.
CORE_OPS = frozenset(vars(tf.raw_ops))


def export(
    translator: Translator | tf.Module,
    base: Path,
    version: int | None = None,
    config: ExportConfig = DEFAULTS,
    pairs: Pairs = (),
    report: Callable[[list[Finding]], None] | None = None,
    bleu_tokenize: str | None = None,
) -> str:
    """Publishes a translator as the SavedModel directory `base/<version>`.

    The version appears complete or not at all, and one that is there is never touched. Before it
    is published it is tried (`check`): its structure, and, in a process that loads it as a server
    does, whether it gives the answers of the model in memory, to anything that may come. That
    process needs Linux: elsewhere it, and the comparison of translations, are left out.

    Args:
        translator: a `Translator`; or a tf.Module whose `serve` is a tf.function with the inputs
            and outputs of `serving_default`, which is then the only signature.
        base: path of the directory that holds all versions of the model; made when missing.
        version: a positive integer; by default the highest version in `base` plus one.
        config: `ExportConfig`.
        pairs: pairs of strings, source and translation, best the validation set: for warm-up
            requests, the examples of the model card and, with less than float32, the comparison
            of translations.
        report: function that is called with the `Finding`s, whatever they are.
        bleu_tokenize: sacreBLEU's tokenizer for that comparison; by default the run's, else 13a.

    Returns:
        The path of the published directory.

    Raises:
        ValueError: if an argument is of another kind or out of its range, the version is taken,
            the weights are not finite, or the saved model is not fit to be served.

    Example:
        >>> path = export(translator, "export/models/dates")  # ends with export/models/dates/1
    """
    base = os.path.abspath(os.fspath(base))
    version = _free_version(base, version)
    make_metrics(bleu_tokenize or "13a")  # refuses it now, not after minutes
    module, functions = functions_of(translator, config)
    with temporary_version(base, version) as temporary:
        _save(module, functions, temporary)
        card = model_card.describe(translator, functions, config, pairs, temporary)
        smaller = (config.precision, config.computation) != ("float32", "float32")
        if smaller and pairs and is_supported():
            by = bleu_tokenize or card.get("recipe", {}).get("bleu_tokenize", "13a")
            card["comparison"] = compare_precision(translator, temporary, pairs, _save, by)
        write_warm_up(temporary, _warm_up_requests(functions, pairs))
        model_card.write_card(temporary, card)  # last: it holds the checksums of all others
        findings = _try_out(functions, temporary)
        if report:
            report(findings)
        _refuse_problems(findings)
        _flush_tree(temporary)
        _publish(temporary, os.path.join(base, str(version)))
    return os.path.join(base, str(version))


def load_saved_model(
    path: Path, allow_ops: Collection[str] = ()
) -> Callable[[Texts], tuple[list[str], list[float]]]:
    """Loads an exported model as a function from texts to translations.

    First its files are compared with their checksums, its graph with what exports of this package
    are (`check_structure`), and a process of its own loads it; only then does this one.

    Args:
        path: a version directory; or the base directory, of which the highest version is taken,
            as TF Serving does.
        allow_ops: names of ops that its graph may hold besides those of this package's exports,
            such as those of a tokenizer of your own.

    Returns:
        A function that takes a list of B strings and returns a list of B translations and a
        list of their B log-probabilities (natural logarithm).

    Raises:
        ValueError: if there is no SavedModel, it is damaged, not a translator's, or made to do
            more than to translate.

    Example:

    >>> translate = load_saved_model("export/models/dates/1")
    >>> texts, log_probs = translate(["samedi 9 mai 1998"])
    >>> texts
    ['1998-05-09']
    """
    directory = version_dir(os.fspath(path))
    inspect_version(directory, allow_ops)
    if is_supported():
        _try_to_load(directory)
    run = load_signatures(directory)

    def translate(texts):
        outputs = run({"text": as_bytes(texts)}, DEFAULT)
        return outputs["text"], outputs["log_prob"]

    return translate


def _try_to_load(directory):
    """Loads a version in a process of its own, which native code may end."""
    try:
        ServerProcess(directory).close()
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"{directory} cannot be loaded as a SavedModel; export it again ({one_line(error)})."
        ) from error


def load_signatures(directory: Path) -> Callable[[dict[str, list[Any]], str], dict[str, Any]]:
    """Loads an exported model as a function of what is asked and of the name of a signature.

    Args:
        directory: a version directory.

    Returns:
        A function from {name of an input: list} and a signature's name to {name of an output:
        nested lists}, strings as str.

    Raises:
        ValueError: if it is incomplete or not a translator's.
    """
    # Imported for its side effect: it registers the tokenizers' ops the graph is made of.
    from keras_transformer.tokenizers import text_ops  # noqa: F401

    try:
        with loadable_path(directory) as path:
            loaded = tf.saved_model.load(path)
    except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"{directory} cannot be loaded as a SavedModel; export it again ({one_line(error)})."
        ) from error
    signature = getattr(loaded, "signatures", {}).get(DEFAULT)
    refuse_other(directory, getattr(signature, "structured_outputs", None))

    def run(inputs, name):
        # A signature does not keep its model alive, so this closure does.
        function = loaded.signatures[name]
        specs = function.structured_input_signature[1]
        outputs = function(**{key: tf.constant(x, specs[key].dtype) for key, x in inputs.items()})
        return {key: _to_lists(value.numpy()) for key, value in outputs.items()}

    return run


def _to_lists(array):
    """An array as nested lists, byte strings as str."""
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode(errors="replace"), otypes=[object])(array)
    return array.tolist()


def _save(module, functions, directory):
    signatures = {name: function.get_concrete_function() for name, function in functions.items()}
    # Nobody trains an export: with gradients it would be two and a half times as many functions.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, directory, signatures=signatures, options=options)


def _warm_up_requests(functions, pairs):
    """Requests with one row and with 32, to every signature that a server may batch."""
    requests = []
    sources, targets = zip(*pairs, strict=True) if pairs else (model_card.EXAMPLES,) * 2
    for name in functions:
        for rows in (1, 32) if SIGNATURES[name].batchable else ():
            inputs = make_inputs(name, sources[:rows], targets[:rows])
            specs = SIGNATURES[name].inputs
            tensors = {key: tf.constant(inputs[key], specs[key].dtype) for key in specs}
            requests.append((name, tensors))
    return requests


def _try_out(functions, directory):
    """The `Finding`s on a version that is not published yet."""
    answers = [
        model_card.answer(functions, name, make_inputs(name, HOSTILE_ROWS)) for name in functions
    ]
    # What it computes is the caller's own affair, as long as a server can.
    return check(directory, answers, CORE_OPS)


def _refuse_problems(findings):
    problems = [problem for finding in findings for problem in finding.problems]
    if problems:
        more = f" And {len(problems) - 5} more." if len(problems) > 5 else ""
        raise ValueError(
            "The translator was not exported, for a server could not use it. "
            + " ".join(problems[:5])
            + more
        )


def _free_version(base, version):
    """The version to publish, after making sure that it is one and that it is not there."""
    taken = versions(base)
    if version is None:
        version = max(taken, default=0) + 1
    try:
        number = operator.index(version)
    except TypeError:
        number = 0
    if isinstance(version, bool) or not 1 <= number <= LARGEST_VERSION:
        raise ValueError(
            f"version is {version!r}; expected an integer from 1 to {LARGEST_VERSION}, or None."
        )
    if number in taken:
        raise ValueError(
            f"Version {number} is already in {base}; published versions are never changed, so "
            f"leave the version out to get {max(taken) + 1}."
        )
    return number


def _publish(temporary, target):
    """Moves a finished directory into place; a version that is there by now stays as it is."""
    try:
        os.rename(temporary, target)
    except OSError as error:
        raise ValueError(
            f"{target} could not be published ({error.strerror}), perhaps because another "
            "export took the version meanwhile; export again without a version."
        ) from error
    flush(os.path.dirname(target))


def _flush_tree(directory):
    """Makes the kernel write a tree to disk, files before the directories that name them."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            flush(os.path.join(parent, name))
        flush(parent)
