"""The files of the two vocabularies of a run or a prepared corpus, SentencePiece or WordPiece.

TensorFlow is loaded only when one is opened as a tokenizer, and SentencePiece and NumPy only when
one is read.
"""

import collections
import itertools
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.special_ids import UNK
from keras_transformer.utils import Path, counted, read_bytes

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer.tokenizers.subword import SubwordTokenizer
    from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer

    Saved: TypeAlias = SubwordTokenizer | WordPieceTokenizer

# The ids of lines one after the other, (I,), and their lengths, (N,).
EncodedLines: TypeAlias = "tuple[np.ndarray, np.ndarray]"

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
    from keras_transformer.tokenizers.vocabularies import MAX_BYTES

    source, target = (read_bytes(path, MAX_BYTES) for path in require_paths(folder))
    return source, target


def write(folder: Path, tokenizers: Sequence[Any]) -> None:
    """Saves the source and the target tokenizer into a directory."""
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        model = getattr(tokenizer, "model", None)  # users' own tokenizers may not have it
        kind = file_extension(model) if isinstance(model, bytes) else SUBWORD
        tokenizer.save(os.path.join(folder, side + kind))


def load(folder: Path) -> "tuple[Saved, Saved]":
    """Loads the source and the target tokenizer: one object if they are equal."""
    from keras_transformer.tokenizers.vocabularies import MAX_BYTES

    paths = require_paths(folder)
    source, target = (open_model(read_bytes(path, MAX_BYTES), path) for path in paths)
    return source, source if source.model == target.model else target


def open_model(model: bytes, path: Path | None = None) -> "Saved":
    """Creates the tokenizer of a serialized vocabulary; `path` is that of its file, for errors."""
    kind: type[Saved]
    if file_extension(model) == WORDPIECE:
        from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer as kind
    else:
        from keras_transformer.tokenizers.subword import SubwordTokenizer as kind
    try:
        return kind(model)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from error


def find_tokens(model: bytes, tokens: Collection[str]) -> list[int]:
    """Returns the ids of tokens that choose a language in a SentencePiece model."""
    if not tokens:
        return []
    import sentencepiece

    from keras_transformer.tokenizers.tokenizer import SPACE

    find = sentencepiece.SentencePieceProcessor(model_proto=model).piece_to_id
    # One that is found in texts stands with the space before it. An unknown piece has a lower id.
    return [max(find(token), find(SPACE + token)) for token in tokens]


def make_encoder(
    model: bytes, subword_sampling: float = 0.0
) -> tuple[Callable[[Sequence[bytes]], EncodedLines], int]:
    """Returns a function from lines to ids, for whole corpora, and the size of the vocabulary.

    The ids are those of the operation that is served. For most types, the sentencepiece package
    returns the same in less time. But a unigram model adds up scores, and between segmentations
    that are equally probable, such as `0 000` and `000 0`, rounding decides, which differs between
    the two; and no package matches the operation for WordPiece.

    With `subword_sampling`, segmentations are sampled: it is the probability that BPE-dropout skips
    a merge, or the exponent of the probabilities of a unigram model. The samples differ each time:
    a seed of sentencepiece holds in one process only.
    """
    if not subword_sampling and model_type(model) in ("unigram", "wordpiece"):
        tokenizer = open_model(model)

        def encode_as_served(lines):
            ragged = tokenizer(lines)
            return ragged.flat_values.numpy(), ragged.row_lengths().numpy()

        return encode_as_served, tokenizer.vocabulary_size
    import numpy as np
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    sampling = {"enable_sampling": True, "alpha": subword_sampling, "nbest_size": -1}

    def encode(lines):
        rows = processor.encode(lines, num_threads=1, **(sampling if subword_sampling else {}))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    return encode, processor.vocab_size()


def describe_lost(model: bytes, lines: Sequence[str]) -> str:
    """Describes which lines change when they are tokenized and detokenized, and what helps.

    Of more than `MAX_LINES`, some are checked, evenly spaced. Control characters and kinds and
    numbers of spaces do not count. The description is empty if no line changes.
    """
    import sentencepiece

    from keras_transformer.tokenizers.vocabularies import SPACES_AND_CONTROLS, SPECIAL

    lines = lines[:: -(-len(lines) // MAX_LINES) or 1]
    changed, characters = 0, collections.Counter[str]()
    if file_extension(model) == SUBWORD:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        written = processor.decode(processor.encode(lines))
    else:
        tokenizer = open_model(model)
        texts = tokenizer.detokenize(tokenizer(lines)).numpy().tolist()
        # Without the letters of [UNK], which would count as written.
        written = [text.decode().replace(SPECIAL[UNK], "⁇") for text in texts]
    for pair in zip(lines, written, strict=True):
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
