"""What vocabularies can be learned from, and of what size; whoever learns them."""

import os
from collections.abc import Iterable, Iterator, Sequence

from keras_transformer.tokenizers.byte_strings import to_bytes

NO_TEXT = "There is no text to learn a vocabulary from: every line is empty."


class VocabularyTooLarge(ValueError):
    """More ids were asked for than the text allows.

    Attributes:
        limit: The most that it allows.
    """

    def __init__(self, limit: int, vocabulary_size: int | None) -> None:
        super().__init__(
            f"The text allows at most {limit} ids, received vocabulary_size={vocabulary_size}: "
            "take fewer ids or more text."
        )
        self.limit = limit


def nonempty(lines: Iterable[str | bytes] | None) -> Iterator[bytes]:
    """Passes lines on, but for empty ones, and refuses to pass none.

    Raises:
        ValueError: If all are empty, or one is no string.
    """
    empty = True
    for line in lines or ():
        if not isinstance(line, (str, bytes)):
            kind = type(line).__name__
            raise ValueError(f"Every line must be a string, received a {kind}: {line!r:.40}.")
        if line.strip():
            empty = False
            yield to_bytes(line)
    if empty:
        raise ValueError(NO_TEXT)


def check_text(
    lines: Iterable[str | bytes] | None, files: Sequence[str | os.PathLike[str]]
) -> None:
    """Refuses one string for many, and what says not, or twice, where the text is.

    Raises:
        ValueError: If it is so.
    """
    if isinstance(lines, (str, bytes, os.PathLike)):
        raise ValueError(
            f"lines must be several strings, received one, {lines!r:.40}: put lines of text in a "
            "list, or pass files=[path]."
        )
    if isinstance(files, (str, bytes, os.PathLike)):
        raise ValueError(
            f"files must be a list of paths, received one, {files!r}: put it in a list."
        )
    if (lines is None) == (len(files) == 0):
        raise ValueError("Give either lines or files to learn a vocabulary from, not both.")
