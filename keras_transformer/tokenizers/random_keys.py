"""Random numbers that follow from what they are for, and from nothing that was drawn before."""

import numpy as np

_BITS = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Turns numbers into others that look random: the last step of splitmix64.

    Steele et al., 2014, "Fast splittable pseudorandom number generators"; a bijection.

    Args:
        numbers: uint64 of rank 1 or more.

    Returns:
        uint64 of the same shape.
    """
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def pair_keys(
    seed: int, number_of_pass: int, side: int, pairs: np.ndarray, corpus: int = 0
) -> np.ndarray:
    """Numbers from which everything follows that is drawn for pairs of a corpus in one pass.

    The five numbers are folded in one after the other, x → mixed((x + φ) ^ number), from 0, in the
    order seed, pass, side, corpus, pair. Integers only: the same on every machine.

    Args:
        seed: Of the training.
        number_of_pass: Which pass over the corpus, from 0.
        side: 0 of the source, 1 of the target.
        pairs: Numbers of the pairs in the corpus, `(B,)`.
        corpus: Which of several.

    Returns:
        uint64 `(B,)`.
    """
    state = np.zeros(1, np.uint64)
    for number in (seed, number_of_pass, side, corpus):
        state = mixed((state + _GOLDEN) ^ np.uint64(number & _BITS))
    return mixed((state + _GOLDEN) ^ np.asarray(pairs).astype(np.uint64))


def drawn(keys: np.ndarray, *places: np.ndarray) -> np.ndarray:
    """A random number for each key and place, whatever else is asked for.

    Args:
        keys: uint64 `(C,)`, such as `pair_keys` gives.
        *places: Non-negative integers `(C,)`: of one of a pair's random numbers.

    Returns:
        uint64 `(C,)`.
    """
    numbers = keys
    for place in places:
        numbers = numbers * _GOLDEN + place.astype(np.uint64)
    return mixed(numbers * _GOLDEN)
