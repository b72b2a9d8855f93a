"""The files of the two vocabularies of a run or a prepared corpus, SentencePiece or WordPiece.

TensorFlow is loaded only when one is opened as a tokenizer, and SentencePiece and NumPy only when
one is read.
"""

import collections
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.special_ids import UNK
from keras_transformer.utils import Path, counted, read_bytes

if TYPE_CHECKING:
    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

    Saved: TypeAlias = SubwordTokenizer | WordPieceTokenizer

SIDES = ("source", "target")
SUBWORD, WORDPIECE = ".spm", ".wordpiece"
NAMES = tuple(side + kind for side in SIDES for kind in (SUBWORD, WORDPIECE))
MAX_LINES = 10_000  # whose round trip is checked


def file_extension(model: bytes) -> str:
    """Returns the file extension of a serialized vocabulary."""
    return WORDPIECE if model.startswith(b"{") else SUBWORD  # JSON, or a protocol buffer


def model_type(model: bytes) -> str:
    """Returns the type of a serialized vocabulary, one of `MODEL_TYPES`."""
    if file_extension(model) == WORDPIECE:
        return "wordpiece"
    from keras_transformer.tokenizers.vocabularies import parse_sentencepiece

    spec = parse_sentencepiece(model).trainer_spec
    return spec.ModelType.Name(spec.model_type).lower()


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
    from keras_transformer.tokenizers.checks import MAX_BYTES

    source, target = (read_bytes(path, MAX_BYTES) for path in require_paths(folder))
    return source, target


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


def describe_lost(model: bytes, lines: Sequence[str]) -> str:
    """Describes which lines change when they are tokenized and detokenized, and what helps.

    Of more than `MAX_LINES`, some are checked, evenly spaced. Control characters and kinds and
    numbers of spaces do not count. The description is empty if no line changes.
    """
    from keras_transformer.tokenizers.vocabularies import SPACES_AND_CONTROLS

    lines = lines[:: -(-len(lines) // MAX_LINES) or 1]
    changed, characters = 0, collections.Counter[str]()
    for pair in zip(lines, _write_back(model, lines), strict=True):
        line, back = (" ".join(text.translate(SPACES_AND_CONTROLS).split()) for text in pair)
        if line != back:
            changed += 1
            old, new = collections.Counter(line), collections.Counter(back)
            characters += (old - new) or (new - old)  # lost, or else inserted
    if not changed:
        return ""
    frequent = ", ".join(f"{char!r} {count:,}" for char, count in characters.most_common(5))
    return (
        f"{changed:,} of {counted(len(lines), 'line')} cannot be written in this vocabulary (most "
        f"frequent changes: {frequent}); one of type bpe, unigram or char, learned without "
        "--lowercase, keeps every character but ▁"
    )


def _write_back(model, lines):
    from keras_transformer.tokenizers.checks import SPECIAL

    if file_extension(model) == SUBWORD:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        return processor.decode(processor.encode(lines))
    tokenizer = open_model(model)
    texts = tokenizer.detokenize(tokenizer(lines)).numpy().tolist()
    # Without the letters of [UNK], which would count as written.
    return [text.decode().replace(SPECIAL[UNK], "⁇") for text in texts]
