"""The pieces of a SentencePiece model, read from its bytes."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

NORMAL, UNUSED = 1, 5  # of sentencepiece_model.proto's types of pieces
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
SPACE = "▁"  # what a piece has for one


class ModelPieces:
    """What a vocabulary consists of.

    Reads the few fields by itself: the classes that come with the sentencepiece package need as
    new a protobuf as they were made with, the package itself needs none.

    Args:
        model: A serialised SentencePiece model.

    Attributes:
        model_type: `"bpe"`, `"unigram"`, `"char"` or `"word"`.
        pieces: The pieces, V strings.
        scores: Their scores, float32 `(V,)`.
        normal: Whether they are of text that can be spelled in other ways, bool `(V,)`: no special
            ids, bytes, nor pieces that users have defined, which are never cut.
        unused: Whether they are marked as such, bool `(V,)`.
        cross_words: Whether some have a space elsewhere than at their start.
    """

    def __init__(self, model: bytes) -> None:
        self.model_type = "unigram"  # the default, which is not written
        self.pieces: list[str] = []
        scores, kinds = [], []
        for number, value in _fields(model):
            if number == 1:
                piece = dict(_fields(value))
                self.pieces.append(piece.get(1, b"").decode(errors="replace"))
                scores.append(piece.get(2, 0.0))
                kinds.append(piece.get(3, NORMAL))
            elif number == 2:
                self.model_type = _MODEL_TYPES[dict(_fields(value)).get(3, 1)]
        self.scores = np.array(scores, np.float32)
        self.normal = np.array(kinds) == NORMAL
        self.unused = np.array(kinds) == UNUSED
        self.cross_words = any(
            SPACE in piece[1:]
            for piece, normal in zip(self.pieces, self.normal, strict=True)
            if normal
        )

    def __len__(self) -> int:
        return len(self.pieces)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The numbers and values of a message's fields, as protocol buffers are written."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
        elif kind == 2:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        else:
            size, code = {1: (8, "<d"), 5: (4, "<f")}[kind]
            (value,) = struct.unpack_from(code, message, place)
            place += size
        yield tag >> 3, value


def _varint(message, place):
    """A number of as many bytes as it needs, and where it ends."""
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
