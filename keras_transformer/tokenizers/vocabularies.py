"""SentencePiece and WordPiece vocabularies: learns, reads and checks them. Loads no TensorFlow."""

import codecs
import collections
import io
import itertools
import json
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.presets import PrepareConfig, TrainConfig
from keras_transformer.presets.options import check_vocabulary
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.tokenizer import INSIDE, to_bytes
from keras_transformer.utils import Path, read_bytes

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")  # by our ids: START is BERT's [CLS], END its [SEP]
NFKC = {True: "nfkc_cf", False: "nfkc"}  # SentencePiece's rules, by whether text is lower-cased
MAX_WORDS = 100_000  # WordPiece pieces are learned from so many of the most frequent words
MAX_WORD_LENGTH = 50  # in characters, of these words
# What is normalized without NFKC: white space to a space, other control characters to nothing.
# NUL cannot be in SentencePiece's rules.
SPACES_AND_CONTROLS = {
    code: " " if chr(code).isspace() else ""
    for code in range(1, 0x3001)
    if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp", "Zs")
}
NO_TEXT = "Cannot learn a vocabulary: every line of the text is empty."

FORMAT = "wordpiece 1"
# Limits of what is read from files, which others may have written.
MAX_BYTES = 32 << 20  # of a SentencePiece model with a million pieces
LEAF = 1 << 31  # of a unit of the normalizer's double array: the mark of a value

# (source, target) texts, read again for each call.
ReadPairs: TypeAlias = Callable[[], Iterable[Sequence[str | bytes]]]


class VocabularyTooLarge(ValueError):
    """The text allows no more than `limit` ids."""

    def __init__(self, limit: int, vocabulary_size: int | None) -> None:
        super().__init__(
            f"The text allows at most {limit} ids, received vocabulary_size={vocabulary_size}: "
            "use fewer ids or more text."
        )
        self.limit = limit


def _read_text(lines):
    """Yields the lines that are not empty, as UTF-8."""
    if isinstance(lines, (str, bytes, os.PathLike)):
        raise ValueError(
            f"lines must be a list of strings or an open file, received {lines!r:.40}."
        )
    empty = True
    for line in lines:
        if not isinstance(line, (str, bytes)):
            kind = type(line).__name__
            raise ValueError(f"Every line must be a string, received a {kind}: {line!r:.40}.")
        if line.strip():
            empty = False
            yield to_bytes(line)
    if empty:
        raise ValueError(NO_TEXT)


def learn_vocabularies(
    read: ReadPairs, config: TrainConfig | PrepareConfig, joint: bool
) -> tuple[bytes, bytes]:
    """Returns the serialized vocabularies of source and target, learned or read from files.

    NFKC is for sources: a model could not write what it changes in targets. Vocabularies that are
    `joint` are learned from both sides; they have the same pieces and scores, and differ in the
    normalization alone. If the text allows fewer ids than requested, all that it allows are used,
    and a message is printed to stderr.
    """
    model_type, lowercase, nfkc = config.model_type, config.lowercase, config.nfkc

    def make(*sides, read=read, nfkc=False, size=None, path=None):
        if path is not None:
            return serialize_pieces(read_pieces(path), lowercase)
        lines = (pair[side] for pair in read() for side in sides)
        size = config.vocabulary_size if size is None else size
        try:
            if model_type == "wordpiece":
                return train_wordpiece(lines, size, lowercase)
            return train_sentencepiece(lines, size, model_type, lowercase, nfkc)
        except VocabularyTooLarge as error:
            limit = error.limit
        print(
            f"vocabulary: {limit} ids instead of {size}, the maximum for this text", file=sys.stderr
        )
        return make(*sides, read=read, nfkc=nfkc, size=limit)

    if not joint:
        sizes = config.source_vocabulary_size, config.target_vocabulary_size
        source = make(0, nfkc=nfkc, size=sizes[0], path=config.source_vocabulary)
        return source, make(1, size=sizes[1], path=config.target_vocabulary)
    if not nfkc or model_type == "wordpiece" or config.source_vocabulary is not None:
        return (make(0, 1, path=config.source_vocabulary),) * 2
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name=NFKC[lowercase], escape_whitespaces=False
    )

    def read_normalized():
        for pair in read():
            yield normalizer.normalize(to_bytes(pair[0])), pair[1]

    target = make(0, 1, read=read_normalized)
    source = parse_sentencepiece(target)
    small = train_sentencepiece(["a"], None, "char", lowercase, nfkc=True)
    source.normalizer_spec.CopyFrom(parse_sentencepiece(small).normalizer_spec)
    return source.SerializeToString(deterministic=True), target


def train_sentencepiece(
    lines: Iterable[str | bytes],
    vocabulary_size: int | None,
    model_type: str,
    lowercase: bool,
    nfkc: bool,
) -> bytes:
    """Returns a serialized SentencePiece model, learned from text; see `SubwordTokenizer.train`."""
    check_vocabulary(vocabulary_size, model_type)
    if model_type == "wordpiece":
        raise ValueError(
            "SubwordTokenizer has no model_type='wordpiece': use WordPieceTokenizer.train."
        )
    options: dict[str, Any] = dict(
        sentence_iterator=_read_text(lines),
        model_type=model_type,
        vocab_size=vocabulary_size or 1 << 20,
        # A char vocabulary ends with the characters, without an error from SentencePiece.
        hard_vocab_limit=model_type != "char" and vocabulary_size is not None,
        byte_fallback=model_type != "word",
        character_coverage=1.0,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=START,
        eos_id=END,
        max_sentence_length=1 << 20,
        num_threads=os.cpu_count() or 1,
        minloglevel=2,
    )
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        if nfkc:
            options["normalization_rule_name"] = NFKC[lowercase]
        else:
            options["normalization_rule_tsv"] = rules = os.path.join(folder, "rules.tsv")
            _write_rules(rules, lowercase)
        try:
            sentencepiece.SentencePieceTrainer.train(model_writer=model, **options)
        except (RuntimeError, OSError) as error:
            raise _translate_error(error, vocabulary_size) from error
    proto = parse_sentencepiece(model.getvalue())
    if vocabulary_size and len(proto.pieces) < vocabulary_size:  # type char
        raise VocabularyTooLarge(len(proto.pieces), vocabulary_size)
    if nfkc:
        return model.getvalue()
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path that differs each time
    return proto.SerializeToString(deterministic=True)


def parse_sentencepiece(model: bytes) -> Any:
    """Returns a SentencePiece model as a protocol buffer."""
    proto: Any = vars(sentencepiece_model_pb2)["ModelProto"]  # created at import time
    return proto.FromString(model)


def _write_rules(path, lowercase):
    """Writes the rules of a normalization without NFKC, for SentencePiece's trainer."""
    with open(path, "w", encoding="utf-8") as file:
        for code in range(0x110000) if lowercase else SPACES_AND_CONTROLS:
            text = SPACES_AND_CONTROLS.get(code, chr(code).lower())
            if text != chr(code):
                file.write(f"{code:X}\t{' '.join(f'{ord(c):X}' for c in text)}\n")


def _translate_error(error, vocabulary_size):
    """Returns a one-sentence error for one of the trainer, which refers to its C++ sources."""
    message = " ".join(str(error).split())
    if "KeyboardInterrupt" in message:  # while it read the text
        return KeyboardInterrupt()
    if match := re.search(r"too high .* (\d+)\D*$", message):
        return VocabularyTooLarge(int(match[1]), vocabulary_size)
    if match := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return ValueError(
            f"The characters of the text and the special ids take {match[1]} ids, received "
            f"vocabulary_size={vocabulary_size}: use more ids."
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError(NO_TEXT)
    if match := re.search(r"ValueError: (.*) At: ", message):  # raised by `_read_text`
        return ValueError(match[1])
    message = re.sub(r"^[A-Z_]+: |\S+\.cc\(\d+\) \[.*\]", "", message).strip(" .")
    return ValueError(f"SentencePiece failed to learn a vocabulary: {message or error!r}.")


def train_wordpiece(
    lines: Iterable[str | bytes],
    vocabulary_size: int,
    lowercase: bool,
) -> bytes:
    """Returns a serialized WordPiece model: every character, and the most useful longer pieces.

    The tokenizers package merges pieces, the method of BERT's vocabularies. Only the pieces that
    occur most often in the segmented words are kept, without intermediate merges.
    """
    check_vocabulary(vocabulary_size, "wordpiece")
    counts, split = _count_words(_read_text(lines), lowercase)
    if not counts:
        raise ValueError(NO_TEXT)
    characters = sorted(set(itertools.chain.from_iterable(counts)))
    # Only characters that are not words by themselves can continue a word.
    inside = [INSIDE + one for one in characters if len(split(f"a{one}a")) == 1]
    base = [*SPECIAL, *characters, *inside]
    wanted = vocabulary_size - len(base)
    if wanted < 0:
        raise ValueError(
            f"The characters of the text, at the beginning of a word and inside, and the special "
            f"ids take {len(base)} ids, received vocabulary_size={vocabulary_size}: use more ids."
        )
    words = {word: count for word, count in counts.items() if len(word) <= MAX_WORD_LENGTH}
    words = dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MAX_WORDS])
    pieces: list[str] = []
    size, exhausted = wanted, False
    while len(pieces) < wanted and not exhausted:
        size += size // 4 + 100
        pieces, exhausted = _merge_pieces(words, base, size)
    if len(pieces) < wanted:
        raise VocabularyTooLarge(len(base) + len(pieces), vocabulary_size)
    return serialize_pieces([*base, *pieces[:wanted]], lowercase)


def _count_words(lines, lowercase):
    """Returns the frequency of each word of a text, and the function that splits text to words."""
    import tokenizers

    normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()

    def split(text):
        return [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]

    counts: collections.Counter[str] = collections.Counter()
    for line in lines:
        counts.update(split(line.decode(errors="ignore")))
    return counts, split


def _merge_pieces(words, base, size):
    """Learns `size` pieces; returns those needed, most frequent first, and whether that is all."""
    import tokenizers

    learner = tokenizers.Tokenizer(tokenizers.models.WordPiece())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=len(base) + size,
        special_tokens=base,  # first, and in this order: ties between merges go by the ids
        min_frequency=1,
        show_progress=False,
    )
    # The trainer takes texts rather than counts.
    texts = (" ".join([word] * count) for word, count in words.items())
    learner.train_from_iterator(texts, trainer)
    ids = learner.get_vocab()
    model = tokenizers.models.WordPiece(ids, max_input_chars_per_word=MAX_WORD_LENGTH)
    uses: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for piece in model.tokenize(word):
            uses[piece.value] += count
    longer = [piece for piece in uses if ids[piece] >= len(base)]
    longer.sort(key=lambda piece: (-uses[piece], ids[piece]))
    return longer, len(ids) < len(base) + size


def read_pieces(path: Path) -> list[str]:
    """Reads a WordPiece `vocab.txt`: one piece per line; its id is the line's number, from 0.

    White space around a piece is removed, as BERT's own readers do: the published file of its
    uncased vocabulary has some. A piece with a space inside, of which that file has four, keeps
    its id and matches nothing.
    """
    lines = read_bytes(path, MAX_BYTES).removeprefix(codecs.BOM_UTF8).split(b"\n")
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


def read_wordpiece_model(model: bytes) -> tuple[list[str], bool]:
    """Reads what `serialize_pieces` writes: pieces in file order, and whether it is uncased."""
    try:
        content: Any = json.loads(model)
        pieces, lowercase = [str(piece) for piece in content["pieces"]], content["lowercase"]
    except (TypeError, ValueError, KeyError, RecursionError):
        raise ValueError("it is not JSON with pieces") from None
    if content.get("format") != FORMAT or not isinstance(lowercase, bool):
        raise ValueError(f"its format is not {FORMAT!r}")
    check_pieces(pieces, "its vocabulary")
    return pieces, lowercase


def check_pieces(pieces: Sequence[str], where: Path) -> None:
    """Raises an error for pieces, in file order, that no vocabulary could have."""
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            raise ValueError(f"{where}: line {number} has no piece: remove the empty line.")
    twice = [piece for piece, count in collections.Counter(pieces).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: {twice[0]!r} is duplicated: every piece must have one id.")
    if SPECIAL[UNK] not in pieces:
        raise ValueError(
            f"{where} has no {SPECIAL[UNK]}, which stands for words that pieces cannot spell."
        )


def check_sentencepiece_model(model: bytes) -> None:
    """Raises an error for bytes that are not a valid SentencePiece model.

    Native code trusts its tables of offsets, and follows them wherever they point.
    """
    if len(model) > MAX_BYTES:
        raise ValueError(f"it has {len(model):,} bytes, at most {MAX_BYTES:,} are read")
    try:
        proto = parse_sentencepiece(model)
    except DecodeError:
        raise ValueError("its bytes cannot be parsed") from None
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
