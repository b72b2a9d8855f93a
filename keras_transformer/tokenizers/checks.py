"""Checks of vocabularies: SentencePiece as protocol buffers, WordPiece as JSON.

Native code trusts the tables of offsets in a SentencePiece model (the normalizer's double array)
and follows them wherever they point; so they are checked first.
"""

import collections
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from keras_transformer.special_ids import UNK
from keras_transformer.utils import Path

MAX_PIECES = 1 << 20
MAX_BYTES = 32 << 20  # of a SentencePiece model with a million pieces
MAX_SUBWORD = 4096  # bytes
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # by our ids: START is BERT's [CLS], END its [SEP]
MAX_PIECE_LENGTH = 256  # bytes of a WordPiece
FORMAT = "wordpiece 1"
LEAF = 1 << 31  # of a unit of the double array: the mark of a value


def check_sentencepiece_model(model: bytes) -> None:
    """Raises an error for bytes that are not a valid SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    model_proto: Any = vars(sentencepiece_model_pb2)["ModelProto"]  # which is made at run time
    if len(model) > MAX_BYTES:
        raise ValueError(f"it has {len(model):,} bytes, at most {MAX_BYTES:,} are read")
    try:
        proto = model_proto.FromString(model)
    except DecodeError:
        raise ValueError("its bytes cannot be parsed") from None
    if not 0 < len(proto.pieces) <= MAX_PIECES:
        raise ValueError(f"it has {len(proto.pieces):,} pieces, from 1 to {MAX_PIECES:,} are read")
    for number, piece in enumerate(proto.pieces):
        if not 0 < len(piece.piece.encode(errors="replace")) <= MAX_SUBWORD:
            raise ValueError(f"piece {number} is empty, or has more than {MAX_SUBWORD} bytes")
        if not math.isfinite(piece.score):
            raise ValueError(f"piece {number} has the score {piece.score}")
    for normalizer in (proto.normalizer_spec, proto.denormalizer_spec):
        _check_table(normalizer.precompiled_charsmap)


def _check_table(table):
    """Raises an error for a normalization table (precompiled_charsmap) with invalid offsets.

    A uint32, the length of a double array in bytes; that array, of uint32 units as in darts-clone;
    then the replacements, each ended by a zero. A unit that is not a value leads to the unit at
    (its own place XOR its offset XOR a byte); its value is a place among the replacements.
    """
    if not table:
        return
    length = int.from_bytes(table[:4], "little")
    text = table[4 + length :]
    # The last byte ends the last replacement; arrays come in blocks of 256 units.
    if len(table) < 8 or not length or length % 1024 or not text or text[-1]:
        raise ValueError("its normalization table is truncated")
    units = np.frombuffer(table[4 : 4 + length], "<u4").astype(np.int64)
    inner = (units & LEAF) == 0
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    targets = np.arange(len(units)) ^ offsets
    if np.any((targets[inner] | 255) >= len(units)):
        raise ValueError("its normalization table has an invalid offset")
    if np.any((units & (LEAF - 1))[~inner] >= len(text)):
        raise ValueError("its normalization table has an offset beyond its texts")


def read_wordpiece_model(model: bytes) -> tuple[list[str], bool]:
    """Reads what `serialize_pieces` writes: pieces in file order, and whether it is uncased."""
    try:
        content: Any = json.loads(model)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it does not say that its format is {FORMAT!r}")
    pieces, lowercase = content.get("pieces"), content.get("lowercase")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise ValueError("its pieces are not a list of strings")
    if not isinstance(lowercase, bool):
        raise ValueError("it does not say whether text is lower-cased")
    if len(pieces) > MAX_PIECES:
        raise ValueError(f"it has {len(pieces):,} pieces, at most {MAX_PIECES:,} are read")
    check_pieces(pieces, "its vocabulary")
    return pieces, lowercase


def check_pieces(pieces: Sequence[str], where: Path) -> None:
    """Raises an error for pieces, in file order, that no vocabulary could have."""
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            raise ValueError(f"{where}: line {number} holds no piece: take the empty line out.")
        if len(piece.encode()) > MAX_PIECE_LENGTH:
            raise ValueError(
                f"{where}: the piece on line {number} has {len(piece.encode())} bytes, expected at "
                f"most {MAX_PIECE_LENGTH}: is this a vocabulary, with a piece on each line?"
            )
    twice = [piece for piece, count in collections.Counter(pieces).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: {twice[0]!r} is duplicated: every piece must have one id.")
    if SPECIAL[UNK] not in pieces:
        raise ValueError(
            f"{where} has no {SPECIAL[UNK]}, which stands for words that pieces cannot spell: it "
            "is not a WordPiece vocabulary, or lacks this line."
        )
    if set(pieces) <= set(SPECIAL):
        raise ValueError(f"{where} has special pieces only: there are none to spell words with.")
