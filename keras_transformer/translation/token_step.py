"""What one step of a search is written down as."""

from typing import NamedTuple


class TokenStep(NamedTuple):
    """One step of a search: the token that was taken, and the most probable ones.

    Attributes:
        token: The piece.
        log_prob: Its natural-log probability after what precedes it, as the model gives it:
            temperature, top-k and top-p of a sampling search are not in it.
        best: Pairs (piece, log_prob), the most probable first.
    """

    token: str
    log_prob: float
    best: list[tuple[str, float]]
