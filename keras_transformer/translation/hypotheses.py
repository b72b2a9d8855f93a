"""Several translations of one text: what is said of each, and how many there can be."""

from typing import NamedTuple

from keras_transformer.presets import SearchConfig
from keras_transformer.wording import counted

# Stands for the log-probability of what is no hypothesis: JSON has no -inf.
LEAST_LOG_PROB = -1e9


class Hypothesis(NamedTuple):
    """One of several translations of a text.

    Attributes:
        text: The translation.
        log_prob: Natural logarithm of its probability, END included, not normalised by length.
        score: What a beam ranks by, log_prob / ((5 + length) / 6)^α with α the length penalty and
            END counted; of what is not ranked, found greedily or drawn, `log_prob`.
    """

    text: str
    log_prob: float
    score: float


def check_n_best(n_best: int | None, search: SearchConfig) -> int:
    """How many translations are wanted of each text.

    Args:
        n_best: A number, or None: as many as the beam is wide.
        search: `SearchConfig`. What is drawn can be drawn any number of times.

    Returns:
        Their number.

    Raises:
        ValueError: If the search does not give as many.
    """
    if n_best is None:
        return search.beam_size
    if search.sample and n_best < 1:
        raise ValueError(f"Expected a positive number of samples, received n_best={n_best}.")
    if not search.sample and not 1 <= n_best <= search.beam_size:
        raise ValueError(
            f"A beam of {search.beam_size} gives {'1 to ' * (search.beam_size > 1)}"
            f"{counted(search.beam_size, 'translation')}, received n_best={n_best}: widen it with "
            "--beam-size, or draw with --sample."
        )
    return n_best


def draw_seed(search: SearchConfig, number: int, draw: int = 0) -> int:
    """The seed of one draw for one text.

    Draw `k` of a seed is the first draw of that seed plus `k`.

    Args:
        search: `SearchConfig`.
        number: Place of the text in the list, from 0.
        draw: Which of its draws, from 0.

    Returns:
        An integer for `sample`, less than 2^63.
    """
    return ((search.seed + draw) % 2**31 << 32) + number
