"""Vocabularies: SentencePiece models as protocol buffers, WordPiece pieces as JSON, their checks.

Loads no TensorFlow. Native code trusts the tables of offsets in a SentencePiece model (the
normalizer's double array) and follows them wherever they point; so they are checked first.
"""

import collections
import json
import math
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from keras_transformer.special_ids import UNK
from keras_transformer.tokenizers.tokenizer import to_bytes
from keras_transformer.utils import Path

INSIDE = "##"  # prefix of a WordPiece piece that continues a word
# What is normalized without NFKC: white space to a space, other control characters to nothing.
# NUL cannot be in SentencePiece's rules.
SPACES_AND_CONTROLS = {
    code: " " if chr(code).isspace() else ""
    for code in range(1, 0x3001)
    if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp", "Zs")
}
NO_TEXT = "Cannot learn a vocabulary: every line of the text is empty."
MAX_PIECES = 1 << 20
MAX_BYTES = 32 << 20  # of a SentencePiece model with a million pieces
MAX_SUBWORD = 4096  # bytes
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # by our ids: START is BERT's [CLS], END its [SEP]
MAX_PIECE_LENGTH = 256  # bytes of a WordPiece
FORMAT = "wordpiece 1"
LEAF = 1 << 31  # of a unit of the double array: the mark of a value


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


def check_sentencepiece_model(model: bytes) -> int:
    """Raises an error for bytes that are not a valid SentencePiece model; counts its pieces."""
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
    return len(proto.pieces)


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


def count_ids(pieces: Sequence[str]) -> int:
    """The number of ids of a vocabulary: its pieces, and special ones that its file lacks."""
    return len(set(pieces) | set(SPECIAL))
