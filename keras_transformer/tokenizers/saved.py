"""The files of the two vocabularies of a run or a prepared corpus, SentencePiece or WordPiece.

TensorFlow is loaded only when one is opened as a tokenizer.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.utils import Path

if TYPE_CHECKING:
    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

    Saved: TypeAlias = SubwordTokenizer | WordPieceTokenizer

SIDES = ("source", "target")
SUBWORD, WORDPIECE = ".spm", ".wordpiece"
NAMES = tuple(side + kind for side in SIDES for kind in (SUBWORD, WORDPIECE))


def file_extension(model: bytes) -> str:
    """Returns the file extension of a serialized vocabulary."""
    return WORDPIECE if model.startswith(b"{") else SUBWORD  # JSON, or a protocol buffer


def model_type(model: bytes) -> str:
    """Returns the type of a serialized vocabulary, one of `MODEL_TYPES`."""
    if file_extension(model) == WORDPIECE:
        return "wordpiece"
    spec = parse_sentencepiece(model).trainer_spec
    return spec.ModelType.Name(spec.model_type).lower()


def parse_sentencepiece(model: bytes) -> Any:
    """Returns a SentencePiece model as a protocol buffer."""
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = vars(sentencepiece_model_pb2)["ModelProto"]  # created at import time
    return proto.FromString(model)


def names(exists: Callable[[str], bool]) -> list[str]:
    """Returns the names of the existing vocabularies, the source's first."""
    found = []
    for side in SIDES:
        found += [side + kind for kind in (SUBWORD, WORDPIECE) if exists(side + kind)][:1]
    return found


def paths(folder: Path) -> list[str]:
    """Returns the paths of the existing vocabularies, the source's first."""
    found = names(lambda name: os.path.isfile(os.path.join(folder, name)))
    return [os.path.join(folder, name) for name in found]


def require_paths(folder: Path) -> list[str]:
    """Returns the paths of the vocabularies of source and target."""
    found = paths(folder)
    if len(found) < len(SIDES):
        raise ValueError(
            f"{folder} has no vocabularies of source and target, such as source{SUBWORD} and "
            f"target{SUBWORD}: pass a run directory or a prepared corpus."
        )
    return found


def read(folder: Path) -> tuple[bytes, bytes]:
    """Returns the serialized vocabularies of source and target."""
    models = []
    for path in require_paths(folder):
        try:
            with open(path, "rb") as file:
                models.append(file.read())
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    return models[0], models[1]


def write(folder: Path, tokenizers: Sequence[Any]) -> None:
    """Saves the source and the target tokenizer into a directory."""
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        model = getattr(tokenizer, "model", None)  # users' own tokenizers may not have it
        kind = file_extension(model) if isinstance(model, bytes) else SUBWORD
        tokenizer.save(os.path.join(folder, side + kind))


def open_model(model: bytes) -> "Saved":
    """Creates the tokenizer of a serialized vocabulary."""
    return _get_class(file_extension(model))(model)


def load(folder: Path) -> "tuple[Saved, Saved]":
    """Loads the source and the target tokenizer: one object if they are equal."""
    source, target = (
        _get_class(os.path.splitext(path)[1]).load(path) for path in require_paths(folder)
    )
    return source, source if source.model == target.model else target


def _get_class(kind: str) -> "type[Saved]":
    if kind == WORDPIECE:
        from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

        return WordPieceTokenizer
    from keras_transformer.tokenizers.subword import SubwordTokenizer

    return SubwordTokenizer
