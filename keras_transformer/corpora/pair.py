"""One sentence and its translation."""

from typing import NamedTuple


class Pair(NamedTuple):
    """A source text and the target text that belongs to it.

    Args:
        source: string, what the model reads.
        target: string, what the model shall write.
        group: string, what results are reported by, such as the language of the source.
            Empty where a corpus has no groups.
    """

    source: str
    target: str
    group: str = ""
