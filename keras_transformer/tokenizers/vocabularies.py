"""Checks of vocabularies and their texts, and files of WordPiece pieces. Loads no TensorFlow."""

import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from keras_transformer.inspection.vocabularies import FORMAT, check_pieces, read_wordpiece_model
from keras_transformer.tokenizers.tokenizer import to_bytes
from keras_transformer.utils import Path

# What is normalized without NFKC: white space to a space, other control characters to nothing.
# NUL cannot be in SentencePiece's rules.
SPACES_AND_CONTROLS = {
    code: " " if chr(code).isspace() else ""
    for code in range(1, 0x3001)
    if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp", "Zs")
}
NO_TEXT = "Cannot learn a vocabulary: every line of the text is empty."


class VocabularyTooLarge(ValueError):
    """The text does not allow as many ids as were requested.

    Attributes:
        limit: The largest number that it allows.
    """

    def __init__(self, limit: int, vocabulary_size: int | None) -> None:
        super().__init__(
            f"The text allows at most {limit} ids, received vocabulary_size={vocabulary_size}: "
            "use fewer ids or more text."
        )
        self.limit = limit


def check_text(
    lines: Iterable[str | bytes] | None, files: Sequence[str | os.PathLike[str]]
) -> None:
    """Checks that either lines or files are given, several of them."""
    if isinstance(lines, (str, bytes, os.PathLike)):
        raise ValueError(
            f"lines must be several strings, received one, {lines!r:.40}: put lines of text in a "
            "list, or pass files=[path]."
        )
    if isinstance(files, (str, bytes, os.PathLike)):
        raise ValueError(
            f"files must be a list of paths, received one, {files!r}: put it in a list."
        )
    if (lines is None) == (len(files) == 0):
        raise ValueError("Pass either lines or files to learn a vocabulary from, not both.")


def nonempty(lines: Iterable[str | bytes] | None) -> Iterator[bytes]:
    """Yields the lines that are not empty, as UTF-8."""
    empty = True
    for line in lines or ():
        if not isinstance(line, (str, bytes)):
            kind = type(line).__name__
            raise ValueError(f"Every line must be a string, received a {kind}: {line!r:.40}.")
        if line.strip():
            empty = False
            yield to_bytes(line)
    if empty:
        raise ValueError(NO_TEXT)


def read_pieces(path: Path) -> list[str]:
    """Reads a WordPiece `vocab.txt`: one piece per line; its id is the line's number, from 0.

    White space around a piece is removed, as BERT's own readers do: the published file of its
    uncased vocabulary has some. A piece with a space inside, of which that file has four, keeps
    its id and matches nothing.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    if lines[0].startswith(b"\xef\xbb\xbf"):
        raise ValueError(
            f"{path} begins with a byte order mark, which would become part of its first piece: "
            "save it as UTF-8 without one."
        )
    if not lines[-1]:
        lines.pop()
    try:
        pieces = [line.decode().strip() for line in lines]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: expected a piece of text on each line.") from error
    check_pieces(pieces, path)
    return pieces


def serialize_pieces(pieces: Sequence[str], lowercase: bool) -> bytes:
    """Serializes a WordPiece vocabulary: its pieces in file order, and whether it is uncased."""
    content = {"format": FORMAT, "lowercase": lowercase, "pieces": list(pieces)}
    return json.dumps(content, ensure_ascii=False, indent=0).encode() + b"\n"


def deserialize_pieces(model: bytes) -> tuple[list[str], bool]:
    """Returns the pieces of a WordPiece model, in file order, and whether it is uncased."""
    try:
        return read_wordpiece_model(model)
    except ValueError as error:
        raise ValueError(
            f"Expected the bytes of a WordPiece model, received {model!r:.40} ({error}): "
            "WordPieceTokenizer.train and from_vocabulary make one, load reads one."
        ) from error


def detokenizing_loses(lowercase: bool) -> str:
    """Describes what a WordPiece tokenizer does not restore when it converts ids to text."""
    return "spaces around punctuation" + (", capitals, accents" if lowercase else "")
