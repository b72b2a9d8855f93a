"""A WordPiece model, as the JSON that it is, before an operation is made of its pieces."""

import collections
import json
from collections.abc import Sequence
from typing import Any

from keras_transformer.special_ids import UNK
from keras_transformer.typing import Path

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # by our ids: START is BERT's [CLS], END its [SEP]
LONGEST_PIECE = 256  # bytes
MOST_PIECES = 1 << 20
FORMAT = "wordpiece 1"


def read_wordpiece_model(model: bytes) -> tuple[list[str], bool]:
    """Reads what `to_model` writes, and refuses all else.

    Args:
        model: A serialised vocabulary.

    Returns:
        The pieces, by their numbers in the file it is from, and whether text is lower-cased.

    Raises:
        ValueError: If it is none, or not a sound one.
    """
    try:
        content: Any = json.loads(model)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it does not say that its format is {FORMAT!r}")
    pieces, lowercase = content.get("pieces"), content.get("lowercase")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise ValueError("its pieces are no list of strings")
    if not isinstance(lowercase, bool):
        raise ValueError("it does not say whether text is lower-cased")
    if len(pieces) > MOST_PIECES:
        raise ValueError(f"it has {len(pieces):,} pieces, at most {MOST_PIECES:,} are read")
    check_pieces(pieces, "its vocabulary")
    return pieces, lowercase


def check_pieces(pieces: Sequence[str], where: Path) -> None:
    """Refuses what no vocabulary could be.

    Args:
        pieces: The pieces, by their numbers in the file.
        where: What an error calls them.

    Raises:
        ValueError: If there is an empty piece, a longer one than 256 bytes, one twice, no `[UNK]`,
            or nothing else.
    """
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            raise ValueError(f"{where}: line {number} holds no piece: take the empty line out.")
        if len(piece.encode()) > LONGEST_PIECE:
            raise ValueError(
                f"{where}: the piece on line {number} has {len(piece.encode())} bytes, expected at "
                f"most {LONGEST_PIECE}: is this a vocabulary, with a piece on each line?"
            )
    twice = [piece for piece, count in collections.Counter(pieces).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: {twice[0]!r} is there twice: every piece must have one id.")
    if SPECIAL[UNK] not in pieces:
        raise ValueError(
            f"{where} has no {SPECIAL[UNK]}, which stands for words that pieces cannot spell: it "
            "is no WordPiece vocabulary, or one that lacks this line."
        )
    if set(pieces) <= set(SPECIAL):
        raise ValueError(f"{where} has special pieces only: there are none to spell words with.")


def count_ids(pieces: Sequence[str]) -> int:
    """The number of ids of a vocabulary: its pieces, and special ones that its file lacks."""
    return len(set(pieces) | set(SPECIAL))
