"""Rewrites SentencePiece models to this package's ids.

Marian and OpenNMT-tf number their pieces in a vocabulary beside the SentencePiece model. How it
segments text depends on the scores of the pieces, not on their order: so a model with the same
pieces in the order of our ids gives the same segmentation, without a second vocabulary.
"""

import dataclasses
import os
import re
from typing import Any

import numpy as np

from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.vocabularies import (
    MAX_BYTES,
    check_sentencepiece_model,
    parse_sentencepiece,
)
from keras_transformer.utils import Path, read_bytes, read_json

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # by our ids
LANGUAGE_TAG = re.compile(r">>[^\s<>]+<<")  # a token that chooses the target language
UNKNOWN_PENALTY = 10.0  # SentencePiece scores an unknown character so much below the least piece


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of one side.

    Attributes:
        pieces: The pieces by their ids in the source's files.
        pad, start: Their ids; None where the source has a vector of zeros instead.
        unk, end: Their ids.
        suppressed: Ids that are never generated, besides pad and start.
        model: The serialized SentencePiece model.
        added: Those of the pieces that are found in texts before these are segmented.
        padding: Number of rows without a piece, which come last.
        plain: Whether language tags and unknown tokens are what the SentencePiece model makes of
            them, not what Marian's tools do.
        languages: Those of the pieces that choose a language, and others that no text is split
            into and that have no text.
    """

    pieces: list[str]
    pad: int | None
    unk: int
    start: int | None
    end: int
    suppressed: frozenset[int]
    model: bytes
    added: tuple[str, ...] = ()
    padding: int = 0
    plain: bool = False
    languages: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of rows of its matrix."""
        return len(self.pieces) + self.padding

    @property
    def tags(self) -> tuple[str, ...]:
        """The pieces that choose the target language, such as `>>fra<<`."""
        return tuple(filter(LANGUAGE_TAG.fullmatch, self.pieces))


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A vocabulary in the order of our ids.

    Attributes:
        model: The serialized SentencePiece model.
        rows: The id in the source's files of each of our ids; -1 for a vector of zeros.
        suppressed: Which of our ids are never generated, bool `(V,)`.
    """

    model: bytes
    rows: np.ndarray
    suppressed: np.ndarray


def rewrite(source: Vocabulary, target: Vocabulary) -> tuple[Rewritten, Rewritten]:
    """Rewrites the vocabularies of both sides.

    Pieces that a SentencePiece model uses and the vocabulary lacks are unknown. They come last, on
    both sides where these share a vocabulary, with the row of UNK; and so do added tokens that
    follow no space, with their own row.
    """
    protos = [parse_sentencepiece(side.model) for side in (source, target)]
    extras = [
        _extra_pieces(side, proto) for side, proto in zip((source, target), protos, strict=True)
    ]
    if source.pieces == target.pieces:
        extras = [list(dict.fromkeys(extras[0] + extras[1]))] * 2
    found = zip((source, target), protos, extras, strict=True)
    first, second = (_rewrite_side(side, proto, extra) for side, proto, extra in found)
    return first, second


def _extra_pieces(side, proto):
    """The pieces of a SentencePiece model that texts may have and the vocabulary lacks."""
    known, kinds = {*side.pieces, *SPECIAL}, type(proto).SentencePiece
    control = kinds.CONTROL, kinds.UNKNOWN
    pieces = [piece.piece for piece in proto.pieces if piece.type not in control]
    return [piece for piece in pieces if piece not in known] + [*side.added]


def _check_whole(pieces, side, proto):
    """Checks language tags and added tokens, which are found with the space before them."""
    spec = proto.normalizer_spec
    spaced = spec.add_dummy_prefix and spec.remove_extra_whitespaces
    for piece in sorted(pieces):
        if not spaced or f"▁{piece}" in side.pieces:
            raise ValueError(
                f"{piece} needs a SentencePiece model that adds a space to the beginning of a text "
                f"and removes others, and a vocabulary without ▁{piece}: such models are not "
                "supported."
            )


def _rewrite_side(side, proto, extra):
    """Rewrites one side; `extra` are the pieces that come last."""
    kinds = type(proto).SentencePiece
    old = {piece.piece: (piece.score, piece.type) for piece in proto.pieces}
    least = min((p.score for p in proto.pieces if p.type == kinds.NORMAL), default=0.0)
    first = [side.pad, side.unk, side.start, side.end]
    rest = [id for id in range(len(side.pieces)) if id not in first]
    taken = {*SPECIAL, *side.pieces, *extra}
    whole = {*side.added, *(() if side.plain else side.tags)}
    _check_whole(whole, side, proto)

    def describe(piece):
        if piece in side.languages:
            return piece, 0.0, kinds.CONTROL
        if piece in whole:
            return f"▁{piece}", 0.0, kinds.USER_DEFINED
        if piece in SPECIAL:  # such as an <s> that the model does not begin with
            while piece in taken:
                piece += "▁"
            return piece, least, kinds.UNUSED
        if piece in old and old[piece][1] != kinds.UNKNOWN:
            return piece, *old[piece]
        if len(piece) == 1 and not proto.trainer_spec.byte_fallback:
            return piece, least - UNKNOWN_PENALTY, kinds.NORMAL
        return piece, least, kinds.UNUSED

    control = [kinds.CONTROL, kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    described = [(name, 0.0, kind) for name, kind in zip(SPECIAL, control, strict=True)]
    described += [describe(side.pieces[id]) for id in rest]
    old |= dict.fromkeys(side.added, (0.0, kinds.USER_DEFINED))
    described += [(piece, *old.get(piece, (least, kinds.UNUSED))) for piece in extra]
    del proto.pieces[:]
    for piece, score, kind in described:
        proto.pieces.add(piece=piece, score=score, type=kind)
    spec = proto.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = PAD, UNK, START, END
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL
    spec.vocab_size = len(proto.pieces)
    if not side.plain:
        spec.unk_surface = ""  # Marian's decoders print nothing for it
    proto.DiscardUnknownFields()  # such as ids that SentencePiece would compare when it is loaded
    ids = {piece: side.pieces.index(piece) for piece in side.added}
    rows = [-1 if id is None else id for id in first] + rest
    rows += [ids.get(piece, side.unk) for piece in extra]
    suppressed = np.isin(rows, list(side.suppressed))
    suppressed[[PAD, START]] = True
    suppressed[len(first) + len(rest) :] = True
    return Rewritten(proto.SerializeToString(deterministic=True), np.array(rows), suppressed)


# --- files ---


def read_model(path: Path) -> bytes:
    """Reads a SentencePiece model."""
    model = read_bytes(path, MAX_BYTES)
    try:
        check_sentencepiece_model(model)
        if not parse_sentencepiece(model).HasField("normalizer_spec"):
            raise ValueError("it is truncated")  # at the end of a piece
    except ValueError as error:
        raise ValueError(f"{path} is not a SentencePiece model: {error}.") from None
    return model


def read_vocabulary(path: Path) -> list[str]:
    """Reads the pieces of `vocab.json`, of Marian's `vocab.yml` or of a list, by their ids."""
    name = os.fspath(path)
    if name.endswith(".json"):
        ids = read_json(path)
    elif name.endswith((".yml", ".yaml")):
        ids = parse_yaml(path, strings=True)  # `no` and `1e3` are pieces
    else:
        ids = {piece: id for id, piece in enumerate(_read_lines(path))}
    try:
        pieces = {int(id): piece for piece, id in ids.items()}
        return [pieces[id] for id in range(max(pieces) + 1)]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path} must number its pieces from 0 without gaps, each once: copy it again."
        ) from None


def _read_lines(path):
    try:
        text = read_bytes(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be UTF-8: copy or download it again.") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def parse_yaml(path: Path, content: bytes | None = None, strings: bool = False) -> Any:
    """Parses a YAML file, or its content, all scalars as strings; objects are not constructed."""
    import yaml

    content = read_bytes(path, MAX_BYTES) if content is None else content
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader) if strings else yaml.SafeLoader
    try:
        return yaml.load(content, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def find_piece(path: Path, pieces: list[str], piece: str) -> int:
    """Returns the id of a piece."""
    if piece not in pieces:
        raise ValueError(f"{path} has no {piece}, which every vocabulary of Marian has.")
    return pieces.index(piece)
