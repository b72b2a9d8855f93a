"""Learns a WordPiece vocabulary from text, and says in one sentence why it could not."""

import collections
import itertools
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from keras_transformer.inspection.wordpiece_model import SPECIAL
from keras_transformer.options import check_vocabulary
from keras_transformer.tokenizers.text_ops import wordpiece_learner as learner
from keras_transformer.tokenizers.vocabulary_checks import (
    NO_TEXT,
    VocabularyTooLarge,
    check_text,
    nonempty,
)
from keras_transformer.tokenizers.wordpiece_text import normalize, split_words
from keras_transformer.tokenizers.wordpiece_vocabulary import INSIDE, to_model

CHUNK = 8192  # lines that are cut into words at once
MOST_WORDS = 100_000  # different ones that pieces are learned from, of which the learner takes 20 s
MOST_SURPLUS = 1.1  # times as many pieces as wanted, of which the rarest are left out
LONGEST_WORD = 50  # characters, of those
IDEOGRAPHS = [  # as BERT has them: every one is a word
    *(range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0)),
    *(range(0x2A700, 0x2B740), range(0x2B740, 0x2B820), range(0x2B820, 0x2CEB0)),
    *(range(0xF900, 0xFB00), range(0x2F800, 0x2FA20)),
]


def train_model(
    lines: Iterable[str | bytes] | None,
    files: Sequence[str | os.PathLike[str]],
    vocabulary_size: int,
    lowercase: bool,
) -> bytes:
    """Learns a vocabulary: every letter of the text, and what is frequent in it.

    tensorflow_text's learner keeps what occurs so many times. Here that threshold is sought which
    gives as many pieces as wanted or a few more, of which the rarest are left out.

    Args:
        lines, files, vocabulary_size, lowercase: As `WordPieceTokenizer.train` has them.

    Returns:
        The serialised model.

    Raises:
        ValueError: If there is no text, or the vocabulary is larger than the text allows or too
            small for its letters.
    """
    check_text(lines, files)
    check_vocabulary(vocabulary_size, "wordpiece")
    counts = _count_words(nonempty(_read(files) if files else lines), lowercase)
    if not counts:
        raise ValueError(NO_TEXT)
    letters = _letters(counts)
    needed = len(SPECIAL) + len(letters)
    if needed > vocabulary_size:
        raise ValueError(
            f"The characters of the text, as a word begins with them and inside of one, and the "
            f"special ids take {needed} ids, received vocabulary_size={vocabulary_size}: take more "
            "ids."
        )
    pieces = _learn(counts, letters, vocabulary_size - len(SPECIAL))
    if len(SPECIAL) + len(pieces) < vocabulary_size:
        raise VocabularyTooLarge(len(SPECIAL) + len(pieces), vocabulary_size)
    return to_model([*SPECIAL, *pieces], lowercase)


def _read(files):
    """The lines of text files."""
    for path in files:
        try:
            with open(path, "rb") as file:
                yield from file
        except OSError as error:
            raise ValueError(f"{os.fspath(path)} cannot be read: {error.strerror}.") from error


def _count_words(lines, lowercase):
    """How often there is each word, as the tokenizer cuts text into them."""
    counts: collections.Counter[str] = collections.Counter()
    while chunk := list(itertools.islice(lines, CHUNK)):
        counts.update(split_words(normalize(tf.constant(chunk), lowercase)))
    return counts


def _letters(counts):
    """One piece for each character, and for those that are not words by themselves another."""
    characters = sorted(set(itertools.chain.from_iterable(counts)))
    return [*characters, *(INSIDE + one for one in characters if not _is_word(one))]


def _is_word(character):
    """Tells whether text is always cut before and after a character."""
    code = ord(character)
    if code < 128:
        return not character.isalnum()
    punctuation = unicodedata.category(character).startswith("P")
    return punctuation or any(code in some for some in IDEOGRAPHS)


def _learn(counts: Mapping[str, int], letters: list[str], size: int) -> list[str]:
    """The letters and the most frequent of the longer pieces, `size` if the text has as many."""
    words = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORDS]
    low, high = 0, words[0][1] + 2  # thresholds that give enough, and too few
    enough: list[str] = []
    # So frequent a word that with it there are as many words as pieces: most likely enough.
    threshold = words[min(size, len(words)) - 1][1]
    while high - low > 1:
        pieces = _learn_by(threshold, words, letters)
        if len(pieces) >= size:
            low, enough = threshold, pieces
            if len(pieces) <= MOST_SURPLUS * size:
                break
        elif threshold == 1:
            return pieces
        else:
            high = threshold
        # There are about as many as the threshold^-0.6.
        guess = round(threshold * (len(pieces) / size) ** 1.6)
        threshold = min(max(guess, low + 1), high - 1)
    return enough[:size]


def _learn_by(threshold, words, letters):
    """The letters, and longer pieces that occur so many times, the most frequent first."""
    pieces = learner.learn(
        words,
        0,  # as many as there are
        [],
        upper_thresh=threshold,
        lower_thresh=threshold,
        max_input_tokens=-1,
        max_token_length=LONGEST_WORD,
        max_unique_chars=len(letters),
        slack_ratio=0,
    )
    # The learner adds each character with ##, of those that are words by themselves too.
    of_one = len(INSIDE) + 1
    return [*letters, *(p for p in pieces if len(p) > (of_one if p.startswith(INSIDE) else 1))]
