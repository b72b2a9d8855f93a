"""WordPiece: text to the ids of BERT's tokenizer and back, as graph operations."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import tensorflow as tf

from keras_transformer.inspection.vocabularies import LONGEST_PIECE, SPECIAL
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.tensors import as_tensor, close
from keras_transformer.tokenizers.text_ops import tensorflow_text
from keras_transformer.tokenizers.wordpiece_text import MOST_BYTES, normalize
from keras_transformer.tokenizers.wordpiece_training import train_model
from keras_transformer.tokenizers.wordpiece_vocabulary import (
    INSIDE,
    detokenizing_loses,
    from_model,
    read_pieces,
    renumber,
    to_model,
)
from keras_transformer.typing import Path, Tensor


class WordPieceTokenizer(tf.Module):
    """The tokenizer of BERT, run by ops that TF Serving links.

    Text is cut at white space, around punctuation and around CJK ideographs; each word then into
    the longest pieces of the vocabulary from left to right (Song et al., 2021, Fast WordPiece
    Tokenization, §3). A word with a character that no piece has, or of more than 400 bytes, is UNK
    as a whole: there are no bytes to spell it with. Ids are those of the BERT tokenizer, but for:

    - ids 0 to 3, which are the package's own; `file_ids` gives those of the vocabulary's file;
    - words of more than 100 characters, which are UNK there and here only above 400 bytes;
    - a capital sigma at a word's end, which is ς in lower case here, as in Greek;
    - names of special pieces, such as [CLS], in a text: they are text here.

    Detokenizing is lossy: it joins words and punctuation by spaces, and where text is lower-cased,
    as accents are dropped with capitals, `They're Élan.` comes back as `they ' re elan .`. That is
    of no matter for a source; a target that people read is better learned by `SubwordTokenizer`.

    Args:
        model: What `save` writes.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Bytes that are no
            UTF-8 are dropped, as control characters are.
        end: Whether END closes each text, which is what a model reads.

    Returns:
        int32 ids: `(T,)` for one string, ragged `(B, None)` for several, which `.to_tensor()` pads
        with PAD.

    Raises:
        ValueError: If `model` is none.

    Example:

    >>> tokenizer = WordPieceTokenizer.from_vocabulary("vocab.txt", lowercase=True)
    >>> ids = tokenizer("The cat slept.")
    >>> tokenizer.file_ids(ids).numpy().tolist()  # BERT's
    [1996, 4937, 7771, 1012]
    >>> tokenizer.detokenize(ids).numpy()
    b'the cat slept .'
    """

    def __init__(self, model: bytes) -> None:
        super().__init__(name="wordpiece_tokenizer")
        pieces, lowercase = from_model(model)
        pieces, numbers = renumber(pieces)
        self.model = model
        self.lowercase = lowercase
        self.vocabulary_size = len(pieces)
        self._processor = tensorflow_text.FastWordpieceTokenizer(
            vocab=pieces,
            suffix_indicator=INSIDE,
            max_bytes_per_word=MOST_BYTES,
            token_out_type=tf.int32,
            unknown_token=SPECIAL[UNK],
        )
        # The space that a word begins with also keeps a piece such as /usr from being taken for
        # a path that a server would not have.
        self._spaced = tf.constant([f" {piece}" for piece in pieces])
        self._numbers = tf.constant(numbers, tf.int32)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model,)  # the tables are TensorFlow's: made anew

    @property
    def detokenizing_loses(self) -> str:
        """What text has no more when it comes back from ids, in words."""
        return detokenizing_loses(self.lowercase)

    def __call__(
        self, text: str | bytes | Sequence[str | bytes] | Tensor, end: bool = False
    ) -> tf.Tensor | tf.RaggedTensor:
        ids = self._processor.tokenize(normalize(as_tensor(text), self.lowercase))
        return close(ids) if end else ids

    def tokenize(
        self, text: str | bytes | Sequence[str | bytes] | Tensor, end: bool = False
    ) -> tf.Tensor | tf.RaggedTensor:
        """Calls the tokenizer, by the name that others have for it."""
        return self(text, end)

    def detokenize(self, ids: Tensor | tf.RaggedTensor) -> Tensor:
        """Joins ids to text. PAD, START and END vanish; UNK becomes [UNK], as what is no id does.

        Args:
            ids: int ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`.

        Returns:
            String tensor, scalar or `(B,)`; valid UTF-8.
        """

        def spell(ids):
            # tensorflow_text's operation for all of this reads past its table.
            ids = self._known(ids)
            silent = (ids == PAD) | (ids == START) | (ids == END)
            return tf.where(silent, "", tf.gather(self._spaced, ids))

        text = tf.strings.reduce_join(tf.ragged.map_flat_values(spell, ids), axis=-1)
        text = tf.strings.regex_replace(text, f" {INSIDE}", "")
        return tf.strings.regex_replace(text, "^ ", "")

    def pieces(self, ids: Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        """Looks ids up: the pieces they stand for, strings of the same shape, ragged or not."""

        def look_up(ids):
            return tf.strings.substr(tf.gather(self._spaced, self._known(ids)), 1, LONGEST_PIECE)

        return tf.ragged.map_flat_values(look_up, ids)

    def file_ids(self, ids: Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        """The numbers that ids have in the file that the vocabulary is from.

        Args:
            ids: int ids of any shape, ragged or not.

        Returns:
            int32 of the same shape; -1 for a special piece that the file lacks.
        """
        return tf.ragged.map_flat_values(
            lambda ids: tf.gather(self._numbers, self._known(ids)), ids
        )

    @classmethod
    def train(
        cls,
        lines: Iterable[str | bytes] | None,
        vocabulary_size: int,
        lowercase: bool = False,
        files: Sequence[Path] = (),
    ) -> Self:
        """Learns a vocabulary.

        Args:
            lines: Iterable of strings; None when `files` are given.
            vocabulary_size: Number of ids, the four special ones and two for each letter (as a
                word begins with it, and inside of one) included.
            lowercase: Whether capitals and accents are dropped first.
            files: Paths of text files to read instead of `lines`.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: If `lines` is one string, there is no text, or the vocabulary is larger than
                the text allows or too small for its letters.
        """
        return cls(train_model(lines, files, vocabulary_size, lowercase))

    @classmethod
    def from_vocabulary(cls, path: Path, lowercase: bool) -> Self:
        """Reads a vocabulary that exists, such as BERT's `vocab.txt`.

        Args:
            path: Name of the file, a piece on each line.
            lowercase: Whether it is for text without capitals and accents, as BERT's "uncased" one
                is; the file does not say.

        Returns:
            A `WordPieceTokenizer`. The special pieces that the file lacks are added to it.

        Raises:
            ValueError: If the file cannot be read, or as `read_pieces` has it.
        """
        return cls(to_model(read_pieces(path), lowercase))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a `.wordpiece` file that `save` has written."""
        try:
            with open(path, "rb") as file:
                model = file.read()
            return cls(model)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the vocabulary, in the order of its file, and whether text is lower-cased."""
        with open(path, "wb") as file:
            file.write(self.model)

    def _known(self, ids):
        """int32 ids, what is out of range as UNK."""
        ids = tf.cast(ids, tf.int32)
        return tf.where((ids >= 0) & (ids < self.vocabulary_size), ids, UNK)
