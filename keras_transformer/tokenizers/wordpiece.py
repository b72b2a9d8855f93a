"""WordPiece: text to the ids of BERT's tokenizer and back, as graph operations."""

from collections.abc import Iterable
from typing import Self

import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.subword import GraphTokenizer, Ids, tensorflow_text
from keras_transformer.tokenizers.tokenizer import INSIDE
from keras_transformer.tokenizers.vocabularies import (
    SPECIAL,
    read_pieces,
    read_wordpiece_model,
    serialize_pieces,
    train_wordpiece,
)
from keras_transformer.utils import Path, Tensor

# A longer word is UNK as a whole. BERT's limit is 100 characters, which are at most 400 bytes.
MAX_WORD_BYTES = 400
# Control characters except tab and line ends, format and private use characters, and U+FFFD, which
# replaces invalid bytes.
DROPPED = r"\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\p{Cf}\p{Co}\x{FFFD}"
ACCENTS = r"\p{Mn}"


class WordPieceTokenizer(GraphTokenizer):
    """BERT's tokenizer, run by operations that TF Serving links.

    Text is split at white space, around punctuation and around CJK ideographs; each word then into
    the longest pieces of the vocabulary from left to right (Song et al., 2021, Fast WordPiece
    Tokenization, §3). A word with a character that is in no piece, or of more than 400 bytes, is
    UNK as a whole: there are no bytes to spell it with. Ids are those of the BERT tokenizer, except

    - ids 0 to 3, which are the package's own; `file_ids` gives those of the vocabulary's file;
    - words of more than 100 characters, which are UNK there, and here only above 400 bytes;
    - a capital sigma at a word's end, which is ς in lower case here, as in Greek;
    - names of special pieces, such as [CLS], in a text: they are text here.

    Detokenizing is lossy: it joins words and punctuation by spaces, and an uncased vocabulary also
    drops capitals and accents: `They're Élan.` comes back as `they ' re elan .`. That does not
    matter for a source; for a target that people read, prefer `SubwordTokenizer`.

    Args:
        model: The content of a file written by `save`.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Control characters and
            bytes that are not valid UTF-8 are removed.
        end: Whether to append END to each text, as the model expects its input.

    Returns:
        int32 ids: `(T,)` for one string, ragged `(B, None)` for several, which `.to_tensor()` pads
        with PAD.

    Raises:
        ValueError: If `model` is not a WordPiece model.

    Example:

    >>> tokenizer = WordPieceTokenizer.from_vocabulary("vocab.txt", lowercase=True)
    >>> ids = tokenizer("The cat slept.")
    >>> tokenizer.file_ids(ids).numpy().tolist()  # BERT's
    [1996, 4937, 7771, 1012]
    >>> tokenizer.detokenize(ids).numpy()
    b'the cat slept .'
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self.model = model
        try:
            in_file, self.lowercase = read_wordpiece_model(model)
        except ValueError as error:
            raise ValueError(
                f"Expected the bytes of a WordPiece model, received {model!r:.40} ({error}): "
                "WordPieceTokenizer.train and from_vocabulary make one, load reads one."
            ) from error
        numbers = {piece: number for number, piece in enumerate(in_file)}
        pieces = [*SPECIAL, *(piece for piece in in_file if piece not in SPECIAL)]
        self.vocabulary_size = len(pieces)
        self._processor = tensorflow_text.FastWordpieceTokenizer(
            vocab=pieces,
            suffix_indicator=INSIDE,
            max_bytes_per_word=MAX_WORD_BYTES,
            token_out_type=tf.int32,
            unknown_token=SPECIAL[UNK],
        )
        # The space before each word also keeps a piece such as /usr from being taken for a path
        # that a server would not have.
        self._spaced = tf.constant([f" {piece}" for piece in pieces])
        self._numbers = tf.constant([numbers.get(piece, -1) for piece in pieces], tf.int32)

    @property
    def detokenizing_loses(self) -> str:
        """Describes what `detokenize` does not restore."""
        return "spaces around punctuation" + (", capitals, accents" if self.lowercase else "")

    def _encode(self, text: Tensor) -> Ids:
        return self._processor.tokenize(normalize(text, self.lowercase))

    def detokenize(self, ids: Tensor | tf.RaggedTensor) -> Tensor:
        """Converts ids to text. PAD, START and END are removed; UNK and invalid ids become [UNK].

        Args:
            ids: int ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`.

        Returns:
            String tensor, scalar or `(B,)`; valid UTF-8.
        """

        def spell(ids):
            # tensorflow_text's own detokenizer reads past its table.
            ids = self._valid(ids)
            silent = (ids == PAD) | (ids == START) | (ids == END)
            return tf.where(silent, "", tf.gather(self._spaced, ids))

        text = tf.strings.reduce_join(tf.ragged.map_flat_values(spell, ids), axis=-1)
        text = tf.strings.regex_replace(text, f" {INSIDE}", "")
        return tf.strings.regex_replace(text, "^ ", "")

    def pieces(self, ids: Tensor | tf.RaggedTensor) -> Ids:
        """Returns the piece of each id: strings of the same shape, ragged or not."""

        def look_up(ids):
            return tf.strings.substr(tf.gather(self._spaced, self._valid(ids)), 1, MAX_WORD_BYTES)

        return tf.ragged.map_flat_values(look_up, ids)

    def file_ids(self, ids: Tensor | tf.RaggedTensor) -> Ids:
        """Returns the ids of the vocabulary's file.

        Args:
            ids: int ids of any shape, ragged or not.

        Returns:
            int32 of the same shape; -1 for a special piece that is not in the file.
        """
        return tf.ragged.map_flat_values(
            lambda ids: tf.gather(self._numbers, self._valid(ids)), ids
        )

    @classmethod
    def train(
        cls,
        lines: Iterable[str | bytes],
        vocabulary_size: int,
        lowercase: bool = False,
    ) -> Self:
        """Learns a vocabulary.

        Args:
            lines: Iterable of strings, such as an open file.
            vocabulary_size: Number of ids, including four special ones and two for each letter (at
                the beginning of a word, and inside).
            lowercase: Whether to drop capitals and accents first.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: If `lines` is one string, there is no text, or the vocabulary is larger than
                the text allows or too small for its letters.
        """
        return cls(train_wordpiece(lines, vocabulary_size, lowercase))

    @classmethod
    def from_vocabulary(cls, path: Path, lowercase: bool) -> Self:
        """Reads an existing vocabulary, such as BERT's `vocab.txt`.

        Args:
            path: A file with one piece per line.
            lowercase: Whether the vocabulary is uncased: for text without capitals and accents. The
                file does not state it.

        Returns:
            A `WordPieceTokenizer`, with the special pieces added that the file lacks.

        Raises:
            ValueError: If the file cannot be read or is not a valid vocabulary.
        """
        return cls(serialize_pieces(read_pieces(path), lowercase))

    def _valid(self, ids):
        """int32 ids, with UNK for those out of range."""
        ids = tf.cast(ids, tf.int32)
        return tf.where((ids >= 0) & (ids < self.vocabulary_size), ids, UNK)


def normalize(text: Tensor, lowercase: bool) -> Tensor:
    """Removes control characters and invalid bytes, and for an uncased vocabulary accents and case.

    tensorflow_text's FastBertNormalizer would also apply NFKC, which turns ß into ss and ² into 2.
    """
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    if not lowercase:
        return tf.strings.regex_replace(text, f"[{DROPPED}]", "")
    text = tensorflow_text.normalize_utf8(text, "NFD")
    text = tf.strings.regex_replace(text, f"[{DROPPED}{ACCENTS}]", "")
    return tf.strings.lower(text, "utf-8")
