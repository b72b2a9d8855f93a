"""The interface of a tokenizer: any object that has it can replace `SubwordTokenizer`."""

import inspect
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from keras_transformer.utils import Tensor

SPACE = "▁"  # stands for a space in the pieces of SentencePiece
INSIDE = "##"  # prefix of a WordPiece piece that continues a word

MEMBERS = ("vocabulary_size", "__call__", "detokenize", "pieces")


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back: `SubwordTokenizer`, or any object with the same four members.

    Four ids are reserved: PAD 0, UNK 1, START 2, END 3. The tokenizer's own ids are 4 to
    `vocabulary_size` - 1.

    `make_dataset` calls the tokenizer with lists of strings, so any Python code will do. A
    `Translator` calls it with string tensors in a graph, so there it must consist of TensorFlow
    operations, and to be exported it must be a `tf.Module` that holds its tables. Whoever loads the
    export must then allow these operations, with `load_saved_model(path, allow_ops=…)` or a
    command's `--allow-ops`; otherwise an error names them.

    One more method is used if the tokenizer has it, as `SubwordTokenizer` does: `save`, by
    `export_ctranslate2`.

    Attributes:
        vocabulary_size: V, the number of ids, including the four reserved ones.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Strings may be bytes.
        end: Whether to append END to each text.

    Returns:
        Integer ids: `(T,)` for one text, ragged `(B, None)` for several.

    Example:

    >>> class Words(tf.Module):
    ...     def __init__(self, words):
    ...         super().__init__()
    ...         self.words = tf.constant(["", "⁇", "", "", *words])
    ...         self.vocabulary_size = 4 + len(words)
    ...         ids = tf.range(4, self.vocabulary_size)
    ...         table = tf.lookup.KeyValueTensorInitializer(self.words[4:], ids)
    ...         self.table = tf.lookup.StaticHashTable(table, kt.UNK)
    ...
    ...     def __call__(self, text, end=False):
    ...         ids = self.table.lookup(tf.strings.split(text))
    ...         if not end:
    ...             return ids
    ...         if ids.shape.rank == 1:
    ...             return tf.concat([ids, [kt.END]], axis=0)
    ...         return tf.concat([ids, tf.fill([ids.nrows(), 1], kt.END)], axis=1)
    ...
    ...     def detokenize(self, ids):
    ...         words = tf.ragged.boolean_mask(ids, (ids == kt.UNK) | (ids > kt.END))
    ...         return tf.strings.reduce_join(self.pieces(words), axis=-1, separator=" ")
    ...
    ...     def pieces(self, ids):
    ...         return tf.gather(self.words, ids)
    >>> tokenizer = Words(["one", "two"])
    >>> tokenizer(["two one", "three"], end=True).to_list()
    [[5, 4, 3], [1, 3]]
    """

    @property
    def vocabulary_size(self) -> int:
        """V, the number of ids."""

    def __call__(self, text: Any, end: bool = False) -> Tensor:
        """Converts text to ids."""

    def detokenize(self, ids: Tensor) -> Tensor:
        """Converts ids to text.

        Args:
            ids: int32 ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`. They may
                include PAD, START and END, which have no text.

        Returns:
            String tensor, scalar or `(B,)`.
        """

    def pieces(self, ids: Tensor) -> Tensor:
        """Returns the piece of each id, for alignments: strings of the same shape, or ragged."""


def check_tokenizer(side: str, tokenizer: Any, members: Iterable[str] = MEMBERS) -> None:
    """Checks that an object has the interface of a tokenizer."""
    missing = [name for name in members if not hasattr(tokenizer, name)]
    if not missing and "__call__" in members and not _takes_end(tokenizer):
        missing = ["the call argument end"]
    if missing:
        is_class = inspect.isclass(tokenizer)
        kind = f"the class {tokenizer.__name__}" if is_class else f"a {type(tokenizer).__name__}"
        raise ValueError(
            f"The {side} tokenizer, {kind}, lacks {', '.join(missing)}: pass a SubwordTokenizer, "
            "or an object with the members of kt.Tokenizer."
        )


def _takes_end(tokenizer):
    try:
        parameters = inspect.signature(tokenizer).parameters
    except (TypeError, ValueError):  # the signature is unknown
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return "end" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def to_bytes(text: str | bytes) -> bytes:
    """Encodes a string in UTF-8; lone surrogates become question marks. Bytes stay as they are."""
    return text.encode("utf-8", errors="replace") if isinstance(text, str) else text
