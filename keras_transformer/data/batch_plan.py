"""One pass over a corpus: which pairs come in which batch."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The batches of a pass, in the order of their turns.

    Attributes:
        drawn: What the pass is over, `(N,)` integers: numbers of kept pairs, in the order drawn.
        order: Places in `drawn`, sorted by length, `(N,)` integers.
        splits: Where in `order` each batch begins and the last one ends, `(n + 1,)`.
        lengths: The padded length of the longer side that each batch is planned with, `(n,)`.
        turns: The numbers of the batches in the order of their turns, `(n,)`.
        stretches: Of each stretch of `drawn`: where it begins, which corpus it is drawn from, and
            how many times that corpus had been gone through before, `(k, 3)`.
    """

    drawn: np.ndarray
    order: np.ndarray
    splits: np.ndarray
    lengths: np.ndarray
    turns: np.ndarray
    stretches: np.ndarray

    def __len__(self) -> int:
        return len(self.turns)

    def batch(self, index: int) -> tuple[np.ndarray, int]:
        """Looks up the batch whose turn it is.

        Args:
            index: From 0, number of the turn.

        Returns:
            Places in `drawn`, `(B,)`, and the planned padded length of the longer side.
        """
        number = self.turns[index]
        return self.order[self.splits[number] : self.splits[number + 1]], int(self.lengths[number])

    def cycles_of(self, places: np.ndarray) -> np.ndarray:
        """Looks up the corpus of each place, and how often that had been gone through, (B, 2)."""
        stretches = np.searchsorted(self.stretches[:, 0], places, side="right") - 1
        return self.stretches[stretches, 1:]
