"""What WordPiece does to text before it is cut into pieces, as BERT does, in a graph."""

from collections.abc import Iterator

import tensorflow as tf

from keras_transformer.inspection.vocabularies import SPECIAL
from keras_transformer.special_ids import UNK
from keras_transformer.tokenizers.text_ops import tensorflow_text
from keras_transformer.tokenizers.wordpiece_vocabulary import INSIDE
from keras_transformer.typing import Tensor

# Of a word, above which it is UNK as a whole. BERT has 100 characters: none of these is lost.
MOST_BYTES = 400
# Control characters but for tab and ends of lines, formatting ones, private ones, and what stands
# for bytes that are no text.
DROPPED = r"\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\p{Cf}\p{Co}\x{FFFD}"
ACCENTS = r"\p{Mn}"
NOWHERE = "\ue000"  # one of those that are dropped


def normalize(text: Tensor, lowercase: bool) -> Tensor:
    """Cleans text; for an uncased vocabulary, drops accents and capitals as well.

    tensorflow_text's FastBertNormalizer would do NFKC besides, which makes ss of ß and 2 of ².

    Args:
        text: String tensor; bytes that are no UTF-8 are dropped.
        lowercase: Whether the vocabulary is an uncased one.

    Returns:
        String tensor of the same shape.
    """
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    if not lowercase:
        return tf.strings.regex_replace(text, f"[{DROPPED}]", "")
    text = tensorflow_text.normalize_utf8(text, "NFD")
    text = tf.strings.regex_replace(text, f"[{DROPPED}{ACCENTS}]", "")
    return tf.strings.lower(text, "utf-8")


def split_words(text: Tensor) -> Iterator[str]:
    """Cuts normalised texts `(B,)` into the words that pieces are looked for in.

    By the operation itself: where no piece can be in the text, every word is one [UNK].
    """
    cutter = tensorflow_text.FastWordpieceTokenizer(
        vocab=[SPECIAL[UNK], NOWHERE],
        suffix_indicator=INSIDE,
        max_bytes_per_word=MOST_BYTES,
        unknown_token=SPECIAL[UNK],
    )
    _, starts, ends = cutter.tokenize_with_offsets(text)
    whole = tf.repeat(text, starts.row_lengths())
    words = tf.strings.substr(whole, starts.flat_values, ends.flat_values - starts.flat_values)
    return (word.decode() for word in words.numpy())
