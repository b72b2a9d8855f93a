"""A WordPiece vocabulary, read from a file or kept in one; needs no TensorFlow."""

import json
from collections.abc import Sequence

from keras_transformer.inspection.vocabularies import (
    FORMAT,
    SPECIAL,
    check_pieces,
    read_wordpiece_model,
)
from keras_transformer.typing import Path

INSIDE = "##"  # begins a piece that continues a word


def read_pieces(path: Path) -> list[str]:
    """Reads a `vocab.txt`: a piece on each line, whose number, from 0, is its id.

    White space around a piece is dropped, as BERT's own readers do: the published file of its
    uncased vocabulary has some. A piece with a space inside, of which that has four, keeps its
    number and matches nothing.

    Args:
        path: Name of the file, UTF-8; lines may end as on Windows.

    Returns:
        The pieces.

    Raises:
        ValueError: If the file cannot be read or is not UTF-8; if it begins with a byte order mark,
            has an empty piece, one of more than 256 bytes, one twice, or no `[UNK]`.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    if lines[0].startswith(b"\xef\xbb\xbf"):
        raise ValueError(
            f"{path} begins with a byte order mark, which would be part of its first piece: save "
            "it as UTF-8 without one."
        )
    if not lines[-1]:
        lines.pop()
    try:
        pieces = [line.decode().strip() for line in lines]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: expected a piece of text on each line.") from error
    check_pieces(pieces, path)
    return pieces


def renumber(pieces: Sequence[str]) -> tuple[list[str], list[int]]:
    """Gives the pieces of a file the package's ids: 0–3 are special, the others keep their order.

    Args:
        pieces: The pieces, by their numbers in the file.

    Returns:
        The pieces by our ids; and of each its number in the file, -1 where that lacks it.
    """
    numbers = {piece: number for number, piece in enumerate(pieces)}
    ours = [*SPECIAL, *(piece for piece in pieces if piece not in SPECIAL)]
    return ours, [numbers.get(piece, -1) for piece in ours]


def detokenizing_loses(lowercase: bool) -> str:
    """What text has no more when it comes back from ids, in words."""
    return "spaces around punctuation" + (", capitals, accents" if lowercase else "")


def to_model(pieces: Sequence[str], lowercase: bool) -> bytes:
    """Serialises a vocabulary, in the order of its file, and whether it is for lower-cased text."""
    content = {"format": FORMAT, "lowercase": lowercase, "pieces": list(pieces)}
    return json.dumps(content, ensure_ascii=False, indent=0).encode() + b"\n"


def from_model(model: bytes) -> tuple[list[str], bool]:
    """The pieces, by their numbers in the file, and whether text is lower-cased.

    Raises:
        ValueError: If it is nothing that `to_model` makes.
    """
    try:
        return read_wordpiece_model(model)
    except ValueError as error:
        text = repr(model)
        text = text if len(text) <= 40 else f"{text[:40]}…"
        raise ValueError(
            f"Expected the bytes of a WordPiece model, received {text} ({error}): "
            "WordPieceTokenizer.train and from_vocabulary make one, load reads one."
        ) from error
