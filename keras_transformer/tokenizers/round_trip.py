"""Counts the lines that a vocabulary cannot write back: no model with it can write them either."""

import collections
from collections.abc import Sequence

import sentencepiece

from keras_transformer.special_ids import UNK
from keras_transformer.tokenizers.saved import SUBWORD, file_extension, open_model
from keras_transformer.tokenizers.vocabularies import SPACES_AND_CONTROLS, SPECIAL
from keras_transformer.utils import counted

MAX_LINES = 10_000


def describe_lost(model: bytes, lines: Sequence[str]) -> str:
    """Describes which lines change when they are tokenized and detokenized, and what helps.

    Of more than `MAX_LINES`, some are checked, evenly spaced. Control characters and kinds and
    numbers of spaces do not count. The description is empty if no line changes.
    """
    lines = lines[:: -(-len(lines) // MAX_LINES) or 1]
    changed, characters = 0, collections.Counter[str]()
    for pair in zip(lines, _write_back(model, lines), strict=True):
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


def _write_back(model, lines):
    if file_extension(model) == SUBWORD:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        return processor.decode(processor.encode(lines))
    tokenizer = open_model(model)
    texts = tokenizer.detokenize(tokenizer(lines)).numpy().tolist()
    # Without the letters of [UNK], which would count as written.
    return [text.decode().replace(SPECIAL[UNK], "⁇") for text in texts]
