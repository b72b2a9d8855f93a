"""What a training reads: pairs of texts, a prepared corpus, or several of those with weights."""

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from keras_transformer.data.encoded_pairs import EncodedPairs, encode_pairs
from keras_transformer.data.prepared.prepared_corpus import PreparedCorpus
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.typing import Path

# A prepared corpus or its path; or several of them, each with its weight.
Corpora: TypeAlias = PreparedCorpus | Path | Sequence[tuple[PreparedCorpus | Path, float]]


@dataclasses.dataclass(frozen=True)
class Mix:
    """Corpora of the same vocabularies, and the share of each in a pass.

    Attributes:
        corpora: `EncodedPairs`, one or several.
        weights: Positive numbers; the share of a corpus is its part of their sum.
        tokenizers: The source and the target `Tokenizer`.
    """

    corpora: Sequence[EncodedPairs]
    weights: Sequence[float]
    tokenizers: tuple[Tokenizer, Tokenizer]

    @classmethod
    def of_texts(
        cls, pairs: Iterable[Sequence[str]], tokenizers: tuple[Tokenizer, Tokenizer]
    ) -> "Mix":
        """Tokenizes any iterable of (source, target) strings.

        Raises:
            ValueError: If what should be a tokenizer is none.
        """
        for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
            check_tokenizer(side, tokenizer, ["__call__"])
        return cls([encode_pairs(pairs, *tokenizers)], [1.0], tokenizers)

    @classmethod
    def of_prepared(cls, corpora: Corpora) -> "Mix":
        """Opens prepared corpora.

        Raises:
            ValueError: If one cannot be opened or has other vocabularies than the first, or a
                weight is not positive.
        """
        if isinstance(corpora, PreparedCorpus | str | os.PathLike):
            corpora = [(corpora, 1.0)]
        weights = [weight for _, weight in corpora]
        if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(
                "A mix is one corpus or more with weights above 0, received "
                f"{', '.join(f'{weight:g}' for weight in weights) or 'none'}."
            )
        opened = [_opened(corpus) for corpus, _ in corpora]
        first = opened[0]
        for other in opened[1:]:
            if _models(other) != _models(first):
                raise ValueError(
                    f"{other.path} was prepared with other vocabularies than {first.path}: only "
                    "corpora of the same ones can be mixed, see prepare's --vocabularies."
                )
        return cls([corpus.pairs for corpus in opened], weights, first.tokenizers)


def _opened(corpus):
    return corpus if isinstance(corpus, PreparedCorpus) else PreparedCorpus(corpus)


def _models(corpus):
    return [tokenizer.model for tokenizer in corpus.tokenizers]
