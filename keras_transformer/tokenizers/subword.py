"""SentencePiece: text to ids and back, as graph operations."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Self

import sentencepiece
import tensorflow as tf

from keras_transformer.inspection.vocabularies import check_sentencepiece_model
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.text_ops import (
    GraphTokenizer,
    Ids,
    sentencepiece_tokenizer,
    tensorflow_text,
)
from keras_transformer.tokenizers.vocabularies import train_sentencepiece
from keras_transformer.utils import Path, Tensor


class SubwordTokenizer(GraphTokenizer):
    """SentencePiece, run by the operations that TF Serving links.

    The ids are those of the sentencepiece package. A model of type bpe, unigram or char spells
    unknown characters in bytes, so that no input is unknown.

    Args:
        model: A serialized SentencePiece model with PAD 0, UNK 1, START 2, END 3.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Bytes that are not
            valid UTF-8 count as U+FFFD.
        end: Whether to append END to each text, as the model expects its input.

    Returns:
        int32 ids: `(T,)` for one string, ragged `(B, None)` for several, which `.to_tensor()` pads
        with PAD.

    Raises:
        ValueError: If `model` is not a SentencePiece model or has other special ids.

    Example:

    >>> tokenizer = SubwordTokenizer.train(lines, vocabulary_size=8000)
    >>> ids = tokenizer(["the quick brown fox", "the fox"])
    >>> tokenizer.detokenize(ids).numpy().tolist()
    [b'the quick brown fox', b'the fox']

    The input of a model:

    >>> source = tokenizer(["the quick brown fox", "the fox"], end=True).to_tensor()
    """

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        try:
            check_sentencepiece_model(model)  # native code trusts its content
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special = [processor.pad_id(), processor.unk_id()]
            special += [processor.bos_id(), processor.eos_id()]
        except Exception as error:
            raise ValueError(
                f"Expected the bytes of a SentencePiece model, received {model!r:.40}: "
                "SubwordTokenizer.train makes one, SubwordTokenizer.load reads one."
            ) from error
        if special != [PAD, UNK, START, END]:
            raise ValueError(
                f"The special ids (pad, unk, bos, eos) must be {[PAD, UNK, START, END]}, received "
                f"{special}: train the model with SubwordTokenizer.train or those ids."
            )
        self.vocabulary_size = processor.vocab_size()
        self._processor = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32)
        self._processor._model_resource = _PersistentModel(model)

    def _encode(self, text: Tensor) -> Ids:
        return self._processor.tokenize(text)

    def detokenize(self, ids: Tensor | tf.RaggedTensor) -> Tensor:
        """Converts ids to text. Special ids are removed, except UNK, which becomes ⁇.

        Args:
            ids: int ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`.

        Returns:
            String tensor, scalar or `(B,)`; valid UTF-8.
        """
        return self._processor.detokenize(tf.cast(ids, tf.int32))

    def pieces(self, ids: Tensor | tf.RaggedTensor) -> Ids:
        """Returns the piece of each id: strings of the same shape, ragged or not."""
        return self._processor.id_to_string(ids)

    @classmethod
    def train(
        cls,
        lines: Iterable[str | bytes] | None,
        vocabulary_size: int | None = None,
        model_type: str = "bpe",
        lowercase: bool = False,
        nfkc: bool = False,
        files: Sequence[Path] = (),
    ) -> Self:
        """Learns a vocabulary.

        Args:
            lines: Iterable of strings; None when `files` are given.
            vocabulary_size: Number of ids, including the special ids and, where the type has them,
                256 bytes. None takes every character or word, with model_type "char" or "word".
            model_type: `"bpe"`, `"unigram"`, `"char"` or `"word"`.
            lowercase: Whether to lower-case text first.
            nfkc: Whether to normalize text to Unicode NFKC first, as `train` does for sources. A
                model cannot write what that changes in its targets: ʰ becomes h, ½ becomes 1⁄2.
                Without it, only control characters and the kinds of space are normalized.
            files: Paths of text files to read instead of `lines`.

        Returns:
            A `SubwordTokenizer`.

        Raises:
            ValueError: If the type is unknown, `lines` is one string, there is no text, or the
                vocabulary is larger than the text allows.
        """
        return cls(train_sentencepiece(lines, files, vocabulary_size, model_type, lowercase, nfkc))


class _PersistentModel(tf.saved_model.experimental.TrackableResource):
    """The model as a named resource, which persists until the process ends.

    tensorflow_text's own resource belongs to a cached kernel, and is deleted when the cache is
    cleared, as keras.utils.set_random_seed and clear_session do.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self._model = model
        _ = self.resource_handle  # created on first access: here, not inside a tf.function

    def _create_resource(self):
        name = hashlib.sha256(self._model).hexdigest()  # one for all tokenizers with this model
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=name
        )
