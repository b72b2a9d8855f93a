"""Text files as lists: of lines, and of sentence pairs."""

from keras_transformer.corpora.lines import iterate_lines
from keras_transformer.corpora.pair import Pair
from keras_transformer.corpora.parallel_text import ParallelText
from keras_transformer.typing import Path


def read_lines(path: Path) -> list[str]:
    """Reads a text file.

    Args:
        path: Of a UTF-8 file, gzipped or not.

    Returns:
        List of lines without their ends.

    Raises:
        ValueError: If the file is missing, empty or not UTF-8.
    """
    return [line.decode() for lines in iterate_lines(path) for line in lines]


def read_pairs(
    source_path: Path, target_path: Path | None = None, option: str = "the target file"
) -> list[Pair]:
    """Reads sentence pairs.

    Args:
        source_path: Of the source sentences, or of a `.tsv` (`.tsv.gz`) file with both; or a
            pattern such as `part-*.en.gz`, for the files that match it, in the order of their
            names.
        target_path: Of the target sentences, in as many files; None for a `.tsv` file.
        option: The option of the command line that names the target, for errors.

    Returns:
        List of `Pair`.

    Raises:
        ValueError: If a file is missing, empty or not UTF-8, the files differ in length, a row of
            a table does not have two columns, or a table is given with a target.

    Example:

    >>> pairs = read_pairs("a.en", "a.de")
    >>> pairs[0].source, pairs[0].target
    ('two dogs', 'zwei Hunde')
    """
    return list(ParallelText(source_path, target_path, option))
