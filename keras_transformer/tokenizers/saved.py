"""Vocabularies as files: SentencePiece or WordPiece, whichever is there.

TensorFlow is loaded when one is opened as a tokenizer, not before.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.typing import Path

if TYPE_CHECKING:
    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

    Saved: TypeAlias = SubwordTokenizer | WordPieceTokenizer

SIDES = ("source", "target")
SUBWORD, WORDPIECE = ".spm", ".wordpiece"
NAMES = tuple(side + kind for side in SIDES for kind in (SUBWORD, WORDPIECE))


def ending(model: bytes) -> str:
    """What the name of a file with a serialised vocabulary ends with: by its kind."""
    return WORDPIECE if model.startswith(b"{") else SUBWORD  # the one is JSON, the other begins \n


def names(exists: Callable[[str], bool]) -> list[str]:
    """The names of the vocabularies that are there, the source's first.

    Args:
        exists: Tells of a name, such as `source.spm`, whether it is there.
    """
    found = []
    for side in SIDES:
        found += [side + kind for kind in (SUBWORD, WORDPIECE) if exists(side + kind)][:1]
    return found


def paths(folder: Path) -> list[str]:
    """The files with the vocabularies of a run or a prepared corpus, the source's first."""
    found = names(lambda name: os.path.isfile(os.path.join(folder, name)))
    return [os.path.join(folder, name) for name in found]


def both(folder: Path) -> list[str]:
    """The files with the vocabularies of source and target in a run or a prepared corpus.

    Raises:
        ValueError: If one is missing.
    """
    found = paths(folder)
    if len(found) < len(SIDES):
        raise ValueError(
            f"{folder} has no vocabularies of source and target, such as source{SUBWORD} and "
            f"target{SUBWORD}: give a run directory or a prepared corpus."
        )
    return found


def read(folder: Path) -> tuple[bytes, bytes]:
    """The serialised vocabularies of source and target in a run or a prepared corpus.

    Raises:
        ValueError: If there are none, or they cannot be read.
    """
    models = []
    for path in both(folder):
        try:
            with open(path, "rb") as file:
                models.append(file.read())
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    return models[0], models[1]


def write(folder: Path, tokenizers: Sequence[Any]) -> None:
    """Writes the vocabularies of source and target tokenizer into a directory, by their kind."""
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        model = getattr(tokenizer, "model", None)  # which one of the user's own need not have
        kind = ending(model) if isinstance(model, bytes) else SUBWORD
        tokenizer.save(os.path.join(folder, side + kind))


def open_model(model: bytes) -> "Saved":
    """The tokenizer of a serialised vocabulary."""
    return _class(ending(model))(model)


def load(folder: Path) -> "tuple[Saved, Saved]":
    """The source and target tokenizer of a run or a prepared corpus: one object if they are equal.

    Raises:
        ValueError: If there are none, or one is damaged.
    """
    source, target = (_class(os.path.splitext(path)[1]).load(path) for path in both(folder))
    return source, source if source.model == target.model else target


def _class(kind: str) -> "type[Saved]":
    if kind == WORDPIECE:
        from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

        return WordPieceTokenizer
    from keras_transformer.tokenizers.subword import SubwordTokenizer

    return SubwordTokenizer
