"""Looks at an exported version that others may have made, before anything of it is loaded."""

import os
from collections.abc import Collection

from keras_transformer.inspection.files import check_files
from keras_transformer.inspection.probing import Probe
from keras_transformer.serving.acceptance.saved_graph import NAME
from keras_transformer.serving.acceptance.server_process import Signatures
from keras_transformer.serving.versions import CARD, DEFAULT, read_card, refuse_other
from keras_transformer.typing import Path

PROGRAM = "keras_transformer.serving.acceptance.graph_probe"
MOST_NAMED = 20  # ops, in a sentence
LOADED = ("variables", "assets", "assets.extra")  # directories of what a loader reads


def check_checksums(version_dir: Path) -> None:
    """Refuses a version whose files are not what was written; where that is unknown, logs it.

    Raises:
        ValueError: If one is missing or damaged, or was not there.
    """
    names = [NAME]
    for folder in LOADED:
        for place, _, found in os.walk(os.path.join(version_dir, folder)):
            inner = os.path.relpath(place, version_dir).replace(os.sep, "/")
            names += [f"{inner}/{name}" for name in found]
    check_files(version_dir, read_card(version_dir), CARD, names)


def inspect_version(version_dir: Path, allow_ops: Collection[str] = ()) -> Signatures:
    """Refuses a version that is damaged, or made to do more than to translate.

    Its files are compared with the checksums in its card; its graph is read in a process of its own
    and holds what `check_structure` says. TensorFlow is not imported.

    Args:
        version_dir: Path of the directory that holds `saved_model.pb`.
        allow_ops: As `check_structure` has them.

    Returns:
        As `read_signatures` does.

    Raises:
        ValueError: If it is not fit to be loaded.
    """
    check_checksums(version_dir)
    allow = [f"--allow={','.join(allow_ops)}"] if allow_ops else []
    (found,) = Probe([os.path.join(version_dir, NAME)], *allow, program=PROGRAM).answers()
    signatures, problems = found["signatures"], found["problems"]
    if DEFAULT in signatures:
        refuse_other(version_dir, signatures[DEFAULT][1])
    if ops := found.get("ops"):
        named = ", ".join(ops[:MOST_NAMED]) + (" …" if len(ops) > MOST_NAMED else "")
        raise ValueError(
            f"{version_dir} holds the ops {named}, which no export of this package is made of: if "
            "you know who made it, and why, name them by --allow-ops, in a program by allow_ops."
        )
    if problems:
        more = f" And {len(problems) - 1} more." if len(problems) > 1 else ""
        raise ValueError(
            f"{version_dir} is no SavedModel that is opened here: {problems[0]}{more} "
            "keras-transformer check names them all."
        )
    return signatures
