"""The interface of a tokenizer: any object that has it can replace `SubwordTokenizer`."""

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

    >>> tokenizer = SubwordTokenizer.train(lines, vocabulary_size=8000)
    >>> isinstance(tokenizer, Tokenizer)  # the guide on tokenizers has one of your own
    True
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
    if missing:
        is_class = isinstance(tokenizer, type)
        kind = f"the class {tokenizer.__name__}" if is_class else f"a {type(tokenizer).__name__}"
        raise ValueError(
            f"The {side} tokenizer, {kind}, lacks {', '.join(missing)}: pass a SubwordTokenizer, "
            "or an object with the members of kt.Tokenizer."
        )


def to_bytes(text: str | bytes) -> bytes:
    """Encodes a string in UTF-8; lone surrogates become question marks. Bytes stay as they are."""
    return text.encode("utf-8", errors="replace") if isinstance(text, str) else text
