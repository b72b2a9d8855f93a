"""What belongs together in a batch: pairs of like lengths, as many as the budget holds."""

import numpy as np


def bucket_boundaries(max_length: int) -> list[int]:
    """The default lengths that batches are padded to: eight to a doubling, as 16, 18, 20 … 32.

    Args:
        max_length: The last boundary is the first that is not below it.

    Returns:
        Ascending list of ints. Rounding up to the next one costs at most 1/8 of padding.
    """
    boundaries, step = list(range(1, 17)), 2
    while boundaries[-1] < max_length:
        boundaries += range(boundaries[-1] + step, 16 * step + 1, step)
        step *= 2
    return [length for length in boundaries if length < max_length] + [max_length]


def sorting_keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """What pairs are sorted by so that neighbours are alike.

    First comes the bucket of the longer side and then, within it, by how many buckets the source is
    longer than the target, upwards and downwards in turn. Where the longer side is of bucket b
    there are 2b + 1 differences: its keys are those from b² up to, but not including, (b + 1)².

    Args:
        source, target: Numbers of the sides' buckets, `(N,)` integers.

    Returns:
        `(N,)` int64.
    """
    difference, longer = source - target, np.maximum(source, target)
    return longer * (longer + 1) + np.where(longer % 2, -difference, difference)


def fill(
    keys: np.ndarray, boundaries: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts pairs and cuts them where the budget is full.

    Args:
        keys: `sorting_keys` of pairs, `(N,)`.
        boundaries, budget: As `cut` has them.

    Returns:
        Places in `keys` sorted by them, those of equal ones in their order, `(N,)` int64, and what
        `cut` returns.
    """
    order = np.argsort(keys, kind="stable")
    last_keys = np.arange(1, len(boundaries) + 1) ** 2 - 1  # of each bucket
    ends = np.searchsorted(keys[order], last_keys.astype(keys.dtype), side="right")
    return order, *cut(ends, boundaries, budget)


def cut(ends: np.ndarray, boundaries: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts sorted pairs where the budget is full.

    Args:
        ends: How many pairs there are up to the end of each bucket.
        boundaries: The padded length of each bucket, ascending.
        budget: Largest rows × padded length of the longer side.

    Returns:
        Where each batch begins and the last one ends, `(n + 1,)` int64, and the padded length of
        the longer side that each is planned with, `(n,)` int64.
    """
    ends = ends.tolist()
    capacities = [budget // int(length) for length in boundaries]
    splits, lengths, bucket = [0], [], 0
    while splits[-1] < ends[-1]:
        start = end = splits[-1]
        while ends[bucket] <= start:
            bucket += 1
        longest = bucket
        for number in range(bucket, len(ends)):
            reached = min(ends[number], start + capacities[number])
            if reached <= end and ends[number] > end:
                break  # not one more fits at this length
            if reached > end:
                end, longest = reached, number
            if end < ends[number]:
                break
        splits.append(end)
        lengths.append(int(boundaries[longest]))
    return np.array(splits, np.int64), np.array(lengths, np.int64)
