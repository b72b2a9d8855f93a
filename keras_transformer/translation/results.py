"""Results of a translation: hypotheses, token probabilities and attention maps. No TensorFlow.

Shapes: S source length, T target length, N layers, H heads.
"""

from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.presets import SearchConfig
from keras_transformer.utils import counted

if TYPE_CHECKING:
    import numpy as np

# The log-probability of a missing hypothesis: JSON has no -inf.
LEAST_LOG_PROB = -1e9
KINDS = ("cross", "encoder", "decoder")  # of attention


class Hypothesis(NamedTuple):
    """One of several translations of a text.

    Attributes:
        text: The translation.
        log_prob: Natural logarithm of its probability, END included, not normalised by length.
        score: What a beam ranks by, log_prob / lp(length) with END counted; see `beam_search`.
            For greedy search and sampling, `log_prob`.
    """

    text: str
    log_prob: float
    score: float


class TokenStep(NamedTuple):
    """One step of a search: the token that was chosen, and the most probable ones.

    Attributes:
        token: The piece.
        log_prob: Its natural-log probability given the tokens before it, as the model computes it:
            without the temperature, top-k and top-p of a sampling search.
        best: Pairs (piece, log_prob), the most probable first.
    """

    token: str
    log_prob: float
    best: list[tuple[str, float]]


class AttentionMaps(NamedTuple):
    """The attention weights of one pair of texts, and the tokens on both sides.

    Attributes:
        source_tokens: S strings, END included: the encoder's input.
        target_tokens: T strings, END included: the output. The decoder's input is START and all
            but the last of them.
        scores: {"encoder": float32 `(N, H, S, S)`, "decoder": `(N, H, T, T)`, "cross":
            `(N, H, T, S)`}: rows are queries, and each sums to 1. For an export {"cross":
            `(1, 1, T, S)`}, the mean of one layer's heads.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    scores: "dict[str, np.ndarray]"

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """The tokens that label the maps of a kind.

        Args:
            kind: "encoder", "decoder" or "cross".

        Returns:
            Keys and queries. In the decoder's self-attention these are its input tokens; in
            cross-attention, a query has the name of the token that it predicts.
        """
        if kind == "encoder":
            return self.source_tokens, self.source_tokens
        if kind == "cross":
            return self.source_tokens, self.target_tokens
        inputs = ["<s>", *self.target_tokens[:-1]]
        return inputs, inputs


def check_n_best(n_best: int | None, search: SearchConfig) -> int:
    """Returns how many translations to find for each text: `n_best`, or the beam size if None.

    Sampling can return any number of samples.
    """
    if n_best is None:
        return search.beam_size
    if search.sample and n_best < 1:
        raise ValueError(f"Expected a positive number of samples, received n_best={n_best}.")
    if not search.sample and not 1 <= n_best <= search.beam_size:
        raise ValueError(
            f"A beam of {search.beam_size} gives {'1 to ' * (search.beam_size > 1)}"
            f"{counted(search.beam_size, 'translation')}, received n_best={n_best}: widen it with "
            "--beam-size, or sample with --sample."
        )
    return n_best


def sample_seed(search: SearchConfig, number: int, draw: int = 0) -> int:
    """The seed, less than 2^63, of one sample of one text, by their numbers from 0.

    Sample `k` of a seed is the first sample of that seed plus `k`.
    """
    return ((search.seed + draw) % 2**31 << 32) + number
