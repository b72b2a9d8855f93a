"""What the package asks of a tokenizer: another one may take the place of `SubwordTokenizer`."""

import inspect
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from keras_transformer.typing import Tensor

MEMBERS = ("vocabulary_size", "__call__", "detokenize", "pieces")


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back: `SubwordTokenizer`, or whatever has the same four members.

    Four ids are the package's own: PAD 0, UNK 1, START 2, END 3. The tokenizer's are from 4 to
    `vocabulary_size` - 1.

    `make_dataset` calls it with lists of strings, so that any Python will do. A `Translator` calls
    it in a graph, with string tensors: there it is made of TensorFlow's operations, and to be
    exported it is a `tf.Module`, which holds its tables. Its operations then have to be allowed by
    whoever opens the export, by `load_saved_model(path, allow_ops=…)` or a command's `--allow-ops`;
    without, they are named.

    Two more methods are used where a tokenizer has them, as `SubwordTokenizer` does: `sampler`, by
    `make_dataset(…, subword_sampling=…)`, and `save`, by `export_ctranslate2`.

    Attributes:
        vocabulary_size: V, number of ids, the package's own included.

    Call arguments:
        text: A string, a list of strings or a string tensor of rank 0 or 1. Strings may be bytes.
        end: Whether END closes each text.

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
        """V, number of ids."""

    def __call__(self, text: Any, end: bool = False) -> Tensor:
        """Text to ids."""

    def detokenize(self, ids: Tensor) -> Tensor:
        """Ids to text.

        Args:
            ids: int32 ids, `(T,)`, `(B, T)` padded with PAD, or ragged `(B, None)`. PAD, START and
                END, which have no text, may be among them.

        Returns:
            String tensor, scalar or `(B,)`.
        """

    def pieces(self, ids: Tensor) -> Tensor:
        """What each id stands for, for alignments: strings of the same shape, ragged or not."""


def check_tokenizer(side: str, tokenizer: Any, members: Iterable[str] = MEMBERS) -> None:
    """Refuses what is no tokenizer.

    Args:
        side: `"source"` or `"target"`.
        tokenizer: What was passed as one.
        members: Names of what is needed of it.

    Raises:
        ValueError: If it lacks one of them, or its call takes no `end`.
    """
    missing = [name for name in members if not hasattr(tokenizer, name)]
    if not missing and "__call__" in members and not _takes_end(tokenizer):
        missing = ["the call argument end"]
    if missing:
        raise ValueError(
            f"The {side} tokenizer, {_kind(tokenizer)}, lacks {', '.join(missing)}: pass a "
            "SubwordTokenizer, or one that has what kt.Tokenizer lists."
        )


def _takes_end(tokenizer):
    try:
        parameters = inspect.signature(tokenizer).parameters
    except (TypeError, ValueError):  # it does not say
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return "end" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _kind(value):
    """Of which type a value is, or that it is one."""
    return f"the class {value.__name__}" if inspect.isclass(value) else f"a {type(value).__name__}"
