"""SentencePiece: text to ids and back, as graph operations.

TensorFlow Text subclasses layers of `tf.keras`, which this package does not use. If
TF_USE_LEGACY_KERAS=1 is set and tf_keras is not installed, its import would fail: so the variable
is removed during the import, and `tf.keras` is Keras 3.
"""

import hashlib
import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeAlias

import sentencepiece
import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.tokenizer import to_bytes
from keras_transformer.tokenizers.vocabularies import (
    MAX_BYTES,
    check_sentencepiece_model,
    train_sentencepiece,
)
from keras_transformer.utils import Path, Tensor, read_bytes

_LEGACY = "TF_USE_LEGACY_KERAS"
_hidden = None if importlib.util.find_spec("tf_keras") else os.environ.pop(_LEGACY, None)
try:
    import tensorflow_text
    from tensorflow_text.python.ops import sentencepiece_tokenizer
finally:
    if _hidden is not None:
        os.environ[_LEGACY] = _hidden

Text: TypeAlias = str | bytes | Sequence[str | bytes] | Tensor
Ids: TypeAlias = tf.Tensor | tf.RaggedTensor


class GraphTokenizer(tf.Module):
    """Base of `SubwordTokenizer` and `WordPieceTokenizer`: one file, one call.

    A subclass defines `_encode`, from a string tensor to int32 ids, and sets `model`, the content
    of the file.
    """

    model: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model,)  # TensorFlow's tables cannot be pickled

    def __call__(self, text: Text, end: bool = False) -> Ids:
        if isinstance(text, (list, tuple)):
            text = tf.constant([to_bytes(one) for one in text], tf.string, shape=[len(text)])
        elif isinstance(text, str):
            text = to_bytes(text)
        ids = self._encode(tf.convert_to_tensor(text, tf.string))
        if not end:
            return ids
        if ids.shape.rank == 1:
            return tf.concat([ids, [END]], axis=0)
        return tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file written by `save`."""
        model = read_bytes(path, MAX_BYTES)
        try:
            return cls(model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the model to a file."""
        with open(path, "wb") as file:
            file.write(self.model)

    def _encode(self, text: Tensor) -> Ids:
        raise NotImplementedError


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
        super().__init__()
        self.model = model
        try:
            check_sentencepiece_model(model)
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special = [processor.pad_id(), processor.unk_id()]
            special += [processor.bos_id(), processor.eos_id()]
        except Exception as error:
            raise ValueError(
                f"Expected the bytes of a SentencePiece model, received {model!r:.40} ({error}): "
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
        lines: Iterable[str | bytes],
        vocabulary_size: int | None = None,
        model_type: str = "bpe",
        lowercase: bool = False,
        nfkc: bool = False,
    ) -> Self:
        """Learns a vocabulary.

        Args:
            lines: Iterable of strings, such as an open file.
            vocabulary_size: Number of ids, including the special ids and, where the type has them,
                256 bytes. None takes every character or word, with model_type "char" or "word".
            model_type: `"bpe"`, `"unigram"`, `"char"` or `"word"`.
            lowercase: Whether to lower-case text first.
            nfkc: Whether to normalize text to Unicode NFKC first, as `train` does for sources. A
                model cannot write what that changes in its targets: ʰ becomes h, ½ becomes 1⁄2.
                Without it, only control characters and the kinds of space are normalized.

        Returns:
            A `SubwordTokenizer`.

        Raises:
            ValueError: If the type is unknown, `lines` is one string, there is no text, or the
                vocabulary is larger than the text allows.
        """
        return cls(train_sentencepiece(lines, vocabulary_size, model_type, lowercase, nfkc))


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
