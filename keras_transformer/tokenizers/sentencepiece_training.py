"""Learns a SentencePiece model from text, and says in one sentence why it could not."""

import io
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.options import check_vocabulary
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.vocabulary_checks import (
    NO_TEXT,
    VocabularyTooLarge,
    check_text,
    nonempty,
)


def train_model(
    lines: Iterable[str | bytes] | None,
    files: Sequence[str | os.PathLike[str]],
    vocabulary_size: int | None,
    model_type: str,
    lowercase: bool,
    nfkc: bool,
) -> bytes:
    """Learns a vocabulary.

    Args:
        lines, files, vocabulary_size, model_type, lowercase, nfkc: As `SubwordTokenizer.train` has
            them.

    Returns:
        The serialised model.

    Raises:
        ValueError: If the type is unknown, there is no text, or the vocabulary is larger than the
            text allows.
    """
    check_text(lines, files)
    check_vocabulary(vocabulary_size, model_type)
    if model_type == "wordpiece":
        raise ValueError(
            "A wordpiece vocabulary is no SentencePiece model: WordPieceTokenizer.train learns it."
        )
    options: dict[str, Any] = dict(
        model_type=model_type,
        vocab_size=vocabulary_size or 1 << 20,
        # A char vocabulary ends where the characters do, and SentencePiece says nothing.
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
    if files:
        options["input"] = [os.fspath(path) for path in files]
    else:
        options["sentence_iterator"] = nonempty(lines)
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        options |= _normalization(lowercase, nfkc, folder)
        try:
            sentencepiece.SentencePieceTrainer.train(model_writer=model, **options)
        except (RuntimeError, OSError) as error:
            raise _explain(error, vocabulary_size) from error
    learned = _without_places(model.getvalue())
    size = sentencepiece.SentencePieceProcessor(model_proto=learned).vocab_size()
    if vocabulary_size and size < vocabulary_size:  # of the type char, nothing was said of it
        raise VocabularyTooLarge(size, vocabulary_size)
    return learned


def _without_places(model):
    """The same model without the name of the file of rules, which is another one each time."""
    proto: Any = sentencepiece_model_pb2  # made when it is imported: checkers see nothing in it
    parsed = proto.ModelProto.FromString(model)
    if not parsed.normalizer_spec.normalization_rule_tsv:
        return model
    parsed.normalizer_spec.ClearField("normalization_rule_tsv")
    return parsed.SerializeToString(deterministic=True)


def _normalization(lowercase, nfkc, folder):
    """The trainer's options for what happens to text before it is cut into pieces."""
    if nfkc or not lowercase:
        name = ("nfkc_cf" if lowercase else "nfkc") if nfkc else "identity"
        return {"normalization_rule_name": name}
    rules = os.path.join(folder, "lowercase.tsv")
    with open(rules, "w", encoding="utf-8") as file:
        for code in range(0x110000):
            lower = chr(code).lower()
            if lower != chr(code) and unicodedata.category(chr(code)) != "Cs":
                file.write(f"{code:X}\t{' '.join(f'{ord(c):X}' for c in lower)}\n")
    return {"normalization_rule_tsv": rules}


def _explain(error, vocabulary_size):
    """An error of one sentence for the trainer's, which speaks of its C++ sources."""
    message = " ".join(str(error).split())
    if match := re.search(r"too high .* (\d+)\D*$", message):
        return VocabularyTooLarge(int(match[1]), vocabulary_size)
    if match := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return ValueError(
            f"The characters of the text and the special ids take {match[1]} ids, received "
            f"vocabulary_size={vocabulary_size}: take more ids."
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError(NO_TEXT)
    if match := re.search(r"ValueError: (.*) At: ", message):  # raised by `nonempty`
        return ValueError(match[1])
    message = re.sub(r"^[A-Z_]+: |\S+\.cc\(\d+\) \[.*\]", "", message).strip(" .")
    return ValueError(f"No vocabulary could be learned: {message or type(error).__name__}.")
