"""Writes, checks and publishes base/<version>/, the layout that TF Serving watches; and reads it.

A server polls `base` and loads every directory whose name is an integer as soon as it sees one,
complete or not. So a version is written beside its place under a name the server ignores, tried
out there, flushed to disk, and moved into place by one rename.
"""

import operator
import os
import re
import shutil
import uuid

import tensorflow as tf

from keras_transformer.saved_model_check import SIGNATURE, check_structure
from keras_transformer.saved_model_trial import answers, check_answers

LARGEST_VERSION = 2**63 - 1  # TF Serving keeps versions as int64
# What TF Serving reads as a version: "7", and "00007" as well. int() would also take "1_000".
VERSION_NAME = re.compile(r"\s*\+?[0-9]+\s*")


def export(translator, base, version=None):
    """Publishes a translator as the SavedModel directory `base/<version>`.

    The version appears complete or not at all, and one that is there is never touched. Before it
    is published, its structure is checked (see `check_structure`), and it is loaded afresh, by
    TensorFlow and as a server does it, and has to give the translator's answers.

    Args:
        translator: a tf.Module whose `serve` is a tf.function with the input signature
            `[TensorSpec([None], tf.string, name="text")]` that returns
            `{"text": string [None], "log_prob": float32 [None]}`.
        base: path of the directory that holds all versions of the model; made when missing.
        version: a positive integer; by default the highest version in `base` plus one.

    Returns:
        The path of the published directory.

    Raises:
        ValueError: if `translator` is no translator, `base` is a file, the version is taken or
            not a positive int64, or the saved model is not fit to be served.

    Example:
        >>> path = export(translator, "export/models/dates")  # export/models/dates/1
    """
    if not hasattr(getattr(translator, "serve", None), "get_concrete_function"):
        raise ValueError(
            f"Expected a translator, got {type(translator).__name__}, whose serve is not a "
            "tf.function; pass a keras_transformer.Translator."
        )
    base = os.path.abspath(os.fspath(base))
    version = _free_version(base, version)
    target = os.path.join(base, str(version))
    # Inside base, so that the rename stays on one file system. Made by os.mkdir: tempfile's
    # directories are closed to other users, and the server is often another user.
    temporary = os.path.join(base, f".tmp-{version}-{uuid.uuid4().hex}")
    try:
        os.makedirs(base, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"{base} is not a directory and cannot become one; pass the directory that is to "
            "hold the model's versions."
        ) from error
    os.mkdir(temporary)
    try:
        signatures = {SIGNATURE: translator.serve.get_concrete_function()}
        tf.saved_model.save(translator, temporary, signatures=signatures)
        problems = check_structure(temporary)
        if problems:
            more = f" And {len(problems) - 5} more." if len(problems) > 5 else ""
            raise ValueError(
                "The translator was not exported, for a server could not run it. "
                + " ".join(problems[:5])
                + more
            )
        check_answers(translator, temporary)
        _flush_tree(temporary)
        _publish(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already when all went well
    return target


def load_saved_model(path):
    """Loads an exported model as a function from texts to translations.

    Args:
        path: a version directory; or the base directory, of which the highest version is taken,
            as TF Serving does.

    Returns:
        A function that takes a list of B strings and returns a list of B translations and a
        list of their B log-probabilities (natural logarithm).

    Raises:
        ValueError: if there is no SavedModel, or it is incomplete or not a translator's.

    Example:
        >>> translate = load_saved_model("export/models/dates/1")
        >>> texts, log_probs = translate(["9 May 1998"])
    """
    # Imported for its side effect: it registers the SentencePiece ops the graph is made of.
    import tensorflow_text  # noqa: F401

    version_dir = _version_dir(os.fspath(path))
    try:
        loaded = tf.saved_model.load(version_dir)
    except (OSError, RuntimeError, ValueError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{version_dir} cannot be loaded as a SavedModel; export it again ({reason})."
        ) from error
    signature = getattr(loaded, "signatures", {}).get(SIGNATURE)
    if signature is None or set(signature.structured_outputs) != {"text", "log_prob"}:
        raise ValueError(
            f"{version_dir} is not an exported translator: its signature {SIGNATURE!r} should "
            "return text and log_prob; export one with keras_transformer.export."
        )

    def translate(texts):
        if isinstance(texts, (str, bytes)):
            raise ValueError(f"Expected a list of texts, got one text; pass [{texts!r}].")
        # A lone surrogate is not text; "?" is what is left of it, rather than an error.
        rows = [x.encode(errors="replace") if isinstance(x, str) else x for x in texts]
        # A signature does not keep its model alive, so this closure does.
        texts, log_probs = answers(loaded.signatures[SIGNATURE], rows)
        return [text.decode(errors="replace") for text in texts], log_probs

    return translate


def _free_version(base, version):
    """The version to publish, after making sure that it is one and that it is not there."""
    taken = _versions(base)
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


def _versions(base):
    """The entries of `base` that a server takes for versions: {number: name}.

    Files count: the server goes by the name, and a rename onto a file would fail.
    """
    names = os.listdir(base) if os.path.isdir(base) else []
    numbers = {int(name): name for name in names if VERSION_NAME.fullmatch(name)}
    return {number: name for number, name in numbers.items() if number <= LARGEST_VERSION}


def _version_dir(path):
    """`path` itself when it holds a SavedModel, else its highest version."""
    candidates = [path]
    versions = _versions(path)
    if versions:
        candidates.append(os.path.join(path, versions[max(versions)]))
    for candidate in candidates:
        if os.path.isfile(os.path.join(candidate, "saved_model.pb")):
            return candidate
    raise ValueError(
        f"There is no SavedModel in {path}; expected saved_model.pb, there or in its highest "
        "version, as keras_transformer.export writes it."
    )


def _publish(temporary, target):
    """Moves a finished directory into place; a version that is there by now stays as it is."""
    try:
        os.rename(temporary, target)
    except OSError as error:
        raise ValueError(
            f"{target} could not be published ({error.strerror}), perhaps because another "
            "export took the version meanwhile; export again without a version."
        ) from error
    _flush(os.path.dirname(target))


def _flush_tree(directory):
    """Makes the kernel write a tree to disk, files before the directories that name them."""
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            _flush(os.path.join(parent, name))
        _flush(parent)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
