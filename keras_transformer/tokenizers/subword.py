"""Text to ids and back, as graph operations."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer.inspection.files import read_bytes
from keras_transformer.inspection.vocabularies import MOST_BYTES, check_sentencepiece_model
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.random_keys import pair_keys
from keras_transformer.tokenizers.sentencepiece_training import train_model
from keras_transformer.tokenizers.subword_sampler import SubwordSampler, subword_sampler
from keras_transformer.tokenizers.tensors import as_tensor, close
from keras_transformer.tokenizers.text_ops import sentencepiece_tokenizer, tensorflow_text
from keras_transformer.typing import Path, Tensor, Texts


class SubwordTokenizer(tf.Module):
    """SentencePiece, run by the ops that TF Serving links.

    The ids are those of the sentencepiece package. A model of type bpe, unigram or char spells
    what it has no piece for in bytes, so that no input is unknown.

    Args:
        model: A serialised SentencePiece model with PAD 0, UNK 1, START 2, END 3.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Bytes that are no
            UTF-8 count as U+FFFD.
        end: Whether END closes each text, which is what a model reads.

    Returns:
        int32 ids: `(T,)` for one string, ragged `(B, None)` for several, which `.to_tensor()` pads
        with PAD.

    Raises:
        ValueError: If `model` is no SentencePiece model or has other special ids.

    Example:

    >>> tokenizer = SubwordTokenizer.train(lines, vocabulary_size=8000)
    >>> ids = tokenizer(["the quick brown fox", "the fox"])
    >>> tokenizer.detokenize(ids).numpy().tolist()
    [b'the quick brown fox', b'the fox']

    What a model reads:

    >>> source = tokenizer(["the quick brown fox", "the fox"], end=True).to_tensor()
    """

    def __init__(self, model: bytes) -> None:
        super().__init__(name="subword_tokenizer")
        try:
            check_sentencepiece_model(model)  # what it trusts, native code does not look at
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special = [processor.pad_id(), processor.unk_id()]
            special += [processor.bos_id(), processor.eos_id()]
        except Exception as error:
            raise ValueError(
                f"Expected the bytes of a SentencePiece model, received {_abbreviate(model)}: "
                "SubwordTokenizer.train makes one, SubwordTokenizer.load reads one."
            ) from error
        if special != [PAD, UNK, START, END]:
            raise ValueError(
                f"The special ids (pad, unk, bos, eos) must be {[PAD, UNK, START, END]}, received "
                f"{special}: train the model with SubwordTokenizer.train or those ids."
            )
        self.model = model
        self.vocabulary_size = processor.vocab_size()
        self._processor = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32)
        self._processor._model_resource = _LastingModel(model)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model,)  # the tables are TensorFlow's: made anew

    def __call__(
        self, text: str | bytes | Sequence[str | bytes] | Tensor, end: bool = False
    ) -> tf.Tensor | tf.RaggedTensor:
        ids = self._processor.tokenize(as_tensor(text))
        return close(ids) if end else ids

    def tokenize(
        self, text: str | bytes | Sequence[str | bytes] | Tensor, end: bool = False
    ) -> tf.Tensor | tf.RaggedTensor:
        """Calls the tokenizer, by the name that others have for it."""
        return self(text, end)

    def detokenize(self, ids: Tensor | tf.RaggedTensor) -> Tensor:
        """Joins ids to text. Special ids vanish, UNK excepted, which becomes ⁇.

        Args:
            ids: int ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`.

        Returns:
            String tensor, scalar or `(B,)`; valid UTF-8.
        """
        return self._processor.detokenize(tf.cast(ids, tf.int32))

    def pieces(self, ids: Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        """Looks ids up: the pieces they stand for, strings of the same shape, ragged or not."""
        return self._processor.id_to_string(ids)

    def sampler(self, strength: float) -> SubwordSampler:
        """Makes what cuts texts, given as ids, into other pieces: in one of many ways each time.

        That keeps a model from relying on one. Of type bpe, BPE-dropout (Provilkov et al., 2020,
        §3): every merge is left out with a probability of `strength`, usually 0.1. Of type unigram,
        subword regularisation (Kudo, 2018, equation 8): segmentations are drawn with their
        probability to the power `strength`, so that a smaller one samples more widely. Texts of
        other types have one segmentation.

        Args:
            strength: Above 0, at most 1.

        Returns:
            Function of ids `(I,)` int, those of sentences one after the other, without END, their
            lengths `(B,)`, and a key for each, uint64 `(B,)`, such as `pair_keys` makes. Returns
            ids, int32, and lengths, int64 `(B,)`, which follow from ids and keys alone: in any
            process, whatever else is in the batch.

        Raises:
            ValueError: If `strength` is out of range, or pieces of a model of type bpe are marked
                as unused.

        Example:

        >>> ids = tokenizer(["the quick brown fox", "the fox"])
        >>> from keras_transformer.tokenizers.random_keys import pair_keys
        >>> keys = pair_keys(seed=1, number_of_pass=0, side=0, pairs=np.array([7, 12]))
        >>> sampler = tokenizer.sampler(0.1)
        >>> ids, lengths = sampler(ids.values.numpy(), ids.row_lengths().numpy(), keys)
        """
        return subword_sampler(self.model, strength)

    def sample(
        self, texts: Texts, strength: float, seed: int, end: bool = False
    ) -> tf.RaggedTensor:
        """Cuts texts into pieces in one of many ways, as `sampler` does.

        Args:
            texts: List of strings.
            strength: Above 0, at most 1.
            seed: Int; the same one gives the same text in the same place of the list the same
                pieces.
            end: Whether END closes each text.

        Returns:
            int32 ragged `(B, None)`.

        Raises:
            ValueError: As `sampler` does.
        """
        sampler = self.sampler(strength)
        ids = self(texts)
        lengths = ids.row_lengths().numpy()
        keys = pair_keys(seed, 0, 0, np.arange(len(lengths)))
        flat, lengths = sampler(ids.flat_values.numpy(), lengths, keys)
        ragged = tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)
        return close(ragged) if end else ragged

    @classmethod
    def train(
        cls,
        lines: Iterable[str | bytes] | None,
        vocabulary_size: int | None = None,
        model_type: str = "bpe",
        lowercase: bool = False,
        nfkc: bool = True,
        files: Sequence[Path] = (),
    ) -> Self:
        """Learns a vocabulary.

        Args:
            lines: Iterable of strings; None when `files` are given.
            vocabulary_size: Number of ids, special ids and, where the type has them, 256 bytes
                included. None takes every character or word, with model_type "char" or "word".
            model_type: `"bpe"`, `"unigram"`, `"char"` or `"word"`.
            lowercase: Whether text is lower-cased first.
            nfkc: Whether text is normalised to Unicode's NFKC first.
            files: Paths of text files to read instead of `lines`.

        Returns:
            A `SubwordTokenizer`.

        Raises:
            ValueError: If the type is unknown, `lines` is one string, there is no text, or the
                vocabulary is larger than the text allows.
        """
        model = train_model(
            lines, files, vocabulary_size, model_type=model_type, lowercase=lowercase, nfkc=nfkc
        )
        return cls(model)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a `.spm` file that `save`, or the sentencepiece package, has written."""
        model = read_bytes(path, MOST_BYTES)
        try:
            return cls(model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the SentencePiece model."""
        with open(path, "wb") as file:
            file.write(self.model)


class _LastingModel(tf.saved_model.experimental.TrackableResource):
    """The model, where the ops find it, for as long as the process lives.

    tensorflow_text's own resource belongs to a cached kernel, and is gone when the cache is
    emptied, as keras.utils.set_random_seed and clear_session do. One with a name stays.
    """

    def __init__(self, model):
        super().__init__()
        self._model = model
        _ = self.resource_handle  # made when first asked for: here, not inside of a tf.function

    def _create_resource(self):
        name = hashlib.sha256(self._model).hexdigest()  # one for all tokenizers with this model
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=name
        )


def _abbreviate(value):
    """The value itself where it is short, as in an error."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
