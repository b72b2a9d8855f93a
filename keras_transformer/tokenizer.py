"""Text to ids and back, as graph operations."""

import hashlib
import io
import itertools
import os
import re
import tempfile
import unicodedata

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text
from tensorflow_text.python.ops import sentencepiece_tokenizer

from keras_transformer.special_ids import END, PAD, START, UNK

MODEL_TYPES = ("bpe", "unigram", "char", "word")
NO_TEXT = "There is no text to learn a vocabulary from: every line is empty."


class SubwordTokenizer(tf.Module):
    """SentencePiece, run by the ops that TF Serving links.

    The ids are those of the sentencepiece package. A model of type bpe, unigram or char spells
    what it has no piece for in bytes, so that no input is unknown.

    Args:
        model: A serialised SentencePiece model with PAD 0, UNK 1, START 2, END 3.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Bytes that are no
            UTF-8 count as U+FFFD.

    Returns:
        int32 ids without START and END: `(T,)` for one string, ragged `(B, None)` for several.

    Raises:
        ValueError: If `model` is no SentencePiece model or has other special ids.

    Example:

    >>> tokenizer = SubwordTokenizer.train(lines, vocabulary_size=8000)
    >>> ids = tokenizer(["the quick brown fox"])
    >>> tokenizer.detokenize(ids)
    [b'the quick brown fox']
    """

    def __init__(self, model):
        super().__init__(name="subword_tokenizer")
        try:
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
        self._sampler = processor
        self._processor = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32)
        self._processor._model_resource = _LastingModel(model)

    def __call__(self, text):
        return self._processor.tokenize(_as_tensor(text))

    def detokenize(self, ids):
        """Joins ids to text. Special ids vanish, UNK excepted, which becomes ⁇.

        Args:
            ids: int ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`.

        Returns:
            String tensor, scalar or `(B,)`; valid UTF-8.
        """
        return self._processor.detokenize(tf.cast(ids, tf.int32))

    def pieces(self, ids):
        """What int32 ids stand for, piece by piece: strings of the same shape, ragged or not."""
        return self._processor.id_to_string(ids)

    def sample(self, texts, strength, seed):
        """Cuts texts into pieces in one of many ways, which keeps a model from relying on one.

        Of type bpe, BPE-dropout (Provilkov et al., 2020, §3): every merge is left out with a
        probability of `strength`, usually 0.1. Of type unigram, subword regularisation (Kudo,
        2018, equation 8): segmentations are drawn with their probability to the power `strength`,
        so that a smaller one samples more widely. Texts of other types have one segmentation.

        Runs in Python, for training only.

        Args:
            texts: List of strings.
            strength: Above 0, at most 1.
            seed: Non-negative int; the same one gives the same pieces.

        Returns:
            int32 ragged `(B, None)`.

        Raises:
            ValueError: If `strength` is out of range.
        """
        if not 0 < strength <= 1:
            raise ValueError(f"strength must be above 0 and at most 1, received {strength}.")
        sentencepiece.set_random_generator_seed(seed)
        ids = self._sampler.encode(
            [text.encode("utf-8", errors="replace") for text in texts],
            enable_sampling=True,
            alpha=strength,
            nbest_size=-1,
            num_threads=1,  # the order in which threads draw would not be the seed's
        )
        # tf.ragged.constant would take longer than everything else.
        flat = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
        return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in ids], validate=False)

    @classmethod
    def train(
        cls, lines, vocabulary_size=None, model_type="bpe", lowercase=False, nfkc=True, files=()
    ):
        """Learns a vocabulary.

        Args:
            lines: Iterable of strings; None when `files` are given.
            vocabulary_size: Number of ids, special ids and, where the type has them, 256 bytes
                included. With model_type "char", None takes every character.
            model_type: `"bpe"`, `"unigram"`, `"char"` or `"word"`.
            lowercase: Whether text is lower-cased first.
            nfkc: Whether text is normalised to Unicode's NFKC first.
            files: Paths of text files to read instead of `lines`.

        Returns:
            A `SubwordTokenizer`.

        Raises:
            ValueError: If the type is unknown, there is no text, or the vocabulary is larger than
                the text allows.
        """
        if model_type not in MODEL_TYPES:
            raise ValueError(
                f"model_type must be one of {', '.join(MODEL_TYPES)}, received {model_type!r}."
            )
        _check_size(vocabulary_size, model_type)
        options = dict(
            model_type=model_type,
            vocab_size=vocabulary_size or 1 << 20,
            # A char vocabulary ends where the characters do, and SentencePiece says nothing.
            hard_vocab_limit=model_type != "char",
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
            options["sentence_iterator"] = _nonempty(lines)
        model = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder:
            options |= _normalization(lowercase, nfkc, folder)
            try:
                sentencepiece.SentencePieceTrainer.train(model_writer=model, **options)
            except (RuntimeError, OSError) as error:
                raise ValueError(_explain(error, vocabulary_size)) from error
        tokenizer = cls(model.getvalue())
        if vocabulary_size and tokenizer.vocabulary_size < vocabulary_size:
            raise ValueError(_too_large(tokenizer.vocabulary_size, vocabulary_size))
        return tokenizer

    @classmethod
    def load(cls, path):
        """Reads a `.spm` file that `save`, or the sentencepiece package, has written."""
        try:
            with open(path, "rb") as file:
                model = file.read()
            return cls(model)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path):
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


def _as_tensor(text):
    """Strings to a tensor; a lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    if isinstance(text, str):
        text = text.encode("utf-8", errors="replace")
    elif isinstance(text, (list, tuple)):
        text = [t.encode("utf-8", errors="replace") if isinstance(t, str) else t for t in text]
        return tf.constant(text, tf.string, shape=[len(text)])
    return tf.convert_to_tensor(text, tf.string)


def _nonempty(lines):
    """Passes lines on and refuses to pass none, which would end the process inside C++."""
    empty = True
    for line in lines:
        if line.strip():
            empty = False
            yield line.encode("utf-8", errors="replace") if isinstance(line, str) else line
    if empty:
        raise ValueError(NO_TEXT)


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


def _check_size(vocabulary_size, model_type):
    """Refuses a size that no text could be learned with."""
    if vocabulary_size is None:
        if model_type != "char":
            raise ValueError(f"A {model_type} vocabulary needs a vocabulary_size, received None.")
        return
    taken, what = (4, "special") if model_type == "word" else (260, "special or single bytes")
    if vocabulary_size <= taken:
        raise ValueError(
            f"vocabulary_size={vocabulary_size} is too small: {taken} ids of a {model_type} "
            f"vocabulary are {what}, and the text needs some."
        )


def _explain(error, vocabulary_size):
    """One sentence for the trainer's failure, which it tells in terms of its C++ sources."""
    message = " ".join(str(error).split())
    if found := re.search(r"too high .* (\d+)\D*$", message):
        return _too_large(found[1], vocabulary_size)
    if found := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return (
            f"The characters of the text and the special ids take {found[1]} ids, received "
            f"vocabulary_size={vocabulary_size}: take more ids."
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return NO_TEXT
    message = re.sub(r"^[A-Z_]+: |\S+\.cc\(\d+\) \[.*\]", "", message).strip(" .")
    return f"No vocabulary could be learned: {message or type(error).__name__}."


def _abbreviate(value):
    """The value itself where it is short, as in an error."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _too_large(limit, vocabulary_size):
    return (
        f"The text allows at most {limit} ids, received vocabulary_size={vocabulary_size}: take "
        "fewer ids or more text."
    )
