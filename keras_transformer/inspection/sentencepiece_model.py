"""A SentencePiece model, as the protocol buffer that it is, before native code takes it as it is.

That code trusts tables of offsets (the normaliser's double array) and goes where they point.
"""

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

MOST_BYTES = 32 << 20  # a million pieces
MOST_PIECES = 1 << 20
LONGEST_PIECE = 4096  # bytes
LEAF = 1 << 31  # of a unit of the double array: the mark of a value


def check_sentencepiece_model(model: bytes) -> int:
    """Refuses bytes that are no SentencePiece model, or not a sound one.

    Args:
        model: A serialised `ModelProto`.

    Returns:
        The number of its pieces.

    Raises:
        ValueError: If they are not.
    """
    from sentencepiece import sentencepiece_model_pb2

    model_proto: Any = vars(sentencepiece_model_pb2)["ModelProto"]  # which is made at run time
    if len(model) > MOST_BYTES:
        raise ValueError(f"it has {len(model):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        proto = model_proto.FromString(model)
    except DecodeError:
        raise ValueError("its bytes cannot be parsed") from None
    if not 0 < len(proto.pieces) <= MOST_PIECES:
        raise ValueError(f"it has {len(proto.pieces):,} pieces, from 1 to {MOST_PIECES:,} are read")
    for number, piece in enumerate(proto.pieces):
        if not 0 < len(piece.piece.encode(errors="replace")) <= LONGEST_PIECE:
            raise ValueError(f"piece {number} is empty, or has more than {LONGEST_PIECE} bytes")
        if not math.isfinite(piece.score):
            raise ValueError(f"piece {number} has the score {piece.score}")
    for normalizer in (proto.normalizer_spec, proto.denormalizer_spec):
        _check_table(normalizer.precompiled_charsmap)
    return len(proto.pieces)


def _check_table(table):
    """Refuses a table of replacements that points out of itself.

    A uint32, the length of a double array in bytes; that array, of uint32 units as darts-clone has
    them; then the replacements, each ended by a zero. A unit that is no value leads to the unit at
    (its own place XOR its offset XOR a byte); its value is a place among the replacements.
    """
    if not table:
        return
    length = int.from_bytes(table[:4], "little")
    text = table[4 + length :]
    # The last byte ends the last replacement; arrays come in blocks of 256 units.
    if len(table) < 8 or not length or length % 1024 or not text or text[-1]:
        raise ValueError("its table of replacements is cut off")
    units = np.frombuffer(table[4 : 4 + length], "<u4").astype(np.int64)
    inner = (units & LEAF) == 0
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    targets = np.arange(len(units)) ^ offsets
    if np.any((targets[inner] | 255) >= len(units)):
        raise ValueError("its table of replacements points out of itself")
    if np.any((units & (LEAF - 1))[~inner] >= len(text)):
        raise ValueError("its table of replacements points behind their end")
